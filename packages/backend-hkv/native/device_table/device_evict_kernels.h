// Insertion into tables that evict: a key has one bucket. If that is full, the lowest
// score is evicted (if scores are equal, the smaller key), which may be the new key.
//
// The index is changed first, then rows are moved, by successive kernels:
//   1. rows of existing keys are written, and their scores updated
//   2. InsertOrEvict: which keys get a slot, which are evicted, and the location of
//      their rows: in the table, or in the call if a key of the call was evicted again
//   3. CopyEvicted: evicted rows are copied to the caller's buffer
//   4. rows of the new keys that remain are written over them
//
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_EVICT_KERNELS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_EVICT_KERNELS_H_

#include <cstdint>

#include "device_copy.h"
#include "device_counters.h"
#include "device_segments.h"
#include "score_rule.h"

namespace sparring::hkv {

// The entry that each key of the call evicts.
struct DepartureArrays {
  uint8_t* leaves;    // (n) 1 if an entry is evicted; initially 0
  int64_t* keys;      // (n)
  uint64_t* scores;   // (n)
  uint64_t* sources;  // (n) its row, or in_call + a position in the call
  static constexpr uint64_t in_call = uint64_t{1} << 32;
};

struct InsertOrEvict {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;
  SortedKeys sorted;  // by head, the missing keys of the call first
  ScoreRule rule;
  const int64_t* keys;      // (n) device
  const uint64_t* scores;   // (n) device, or NULL
  uint32_t* numbers;        // out (n) device, initially kNoDeviceRow: rows of keys that remain
  DepartureArrays departs;  // out, device; `leaves` NULL: not requested
  DeviceCounters* counters;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    KeyWindow window(warp, sorted, keys);
    for_each_segment(block, sorted, index.num_heads,
                     [&](uint32_t head, uint64_t begin, uint64_t end) {
                       Owned owned = own(warp, head);
                       for (uint64_t place = begin; place < end; ++place) {
                         insert(warp, owned, window.at(place));
                       }
                       release(warp, owned);
                     });
  }

 private:
  // A bucket that a warp is processing. Lane l has slots 4l to 4l + 3.
  struct Owned {
    DeviceBucket bucket;
    uint32_t first_row;
    uint32_t allowed;  // 0xff in the bytes of slots that may be used
    uint32_t digests;
    uint32_t filled;  // 0xff in the bytes of slots that this call filled
    uint64_t scores[4];
    uint32_t num_inserted;
  };
  struct Rank {
    uint64_t score;
    int64_t key;
    SPARRING_DEVICE bool operator<(const Rank& other) const {
      return score != other.score ? score < other.score : key < other.key;
    }
  };

  SPARRING_DEVICE Owned own(const device::Warp& warp, uint32_t head) const {
    Owned owned{index.heads.at(head), index.first_row(head),
                bytes_below(index.limit(head), warp.lane()), 0, 0, {}, 0};
    owned.digests = digests_of_lane(owned.bucket, warp.lane());
    SPARRING_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      // Scores of empty slots are not initialized.
      if ((owned.digests >> (8 * i) & 0xffu) == 0) continue;
      owned.scores[i] = owned.bucket.scores[4 * warp.lane() + i];
    }
    return owned;
  }

  SPARRING_DEVICE void release(const device::Warp& warp, const Owned& owned) const {
    SPARRING_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      if ((owned.filled >> (8 * i) & 1u) == 0) continue;
      owned.bucket.entries[4 * warp.lane() + i].used = 0;
    }
    if (warp.lane() == 0) device::atomic_add(&counters->num_inserted, owned.num_inserted);
    warp.sync();
  }

  SPARRING_DEVICE void insert(const device::Warp& warp, Owned& owned,
                              const KeyWindow::Key& wanted) const {
    const auto [position, key] = wanted;
    const uint8_t digest = digest_of(index.hash(key));
    // Duplicate keys violate the contract, but must not damage the table.
    const uint32_t twin = slot_of_key(warp, owned.bucket, owned.digests, key, digest);
    if (twin != kDeviceSlots) {
      if (warp.lane() == 0) numbers[position] = owned.first_row + twin;
      return;
    }
    const Rank arriving{rule.initial(scores == nullptr ? nullptr : scores + position), key};
    uint32_t slot = first_slot(warp, device::equal_bytes(owned.digests, 0) & owned.allowed);
    if (slot != kDeviceSlots) {
      ++owned.num_inserted;
    } else {
      Rank leaving;
      slot = first_to_leave(warp, owned, leaving);
      if (arriving < leaving) {
        depart(warp, position, arriving, DepartureArrays::in_call + position);
        return;
      }
      const uint32_t used = owned.bucket.entries[slot].used;
      if (used != 0 && warp.lane() == 0) numbers[used - 1] = kNoDeviceRow;
      depart(warp, position, leaving,
             used != 0 ? DepartureArrays::in_call + (used - 1) : uint64_t{owned.first_row} + slot);
      warp.sync();
    }
    fill(warp, owned, slot, arriving, digest, position);
  }

  SPARRING_DEVICE void fill(const device::Warp& warp, Owned& owned, uint32_t slot,
                            const Rank& arriving, uint8_t digest, uint32_t position) const {
    if (warp.lane() == slot / 4) {
      const uint32_t byte = slot % 4;
      const uint32_t mask = uint32_t{0xff} << (8 * byte);
      owned.digests = (owned.digests & ~mask) | uint32_t{digest} << (8 * byte);
      owned.filled |= mask;
      SPARRING_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        if (i == byte) owned.scores[i] = arriving.score;
      }
      store_entry(owned.bucket.entries + slot,
                  {arriving.key, owned.first_row + slot, position + 1});
      owned.bucket.digests[slot] = digest;
      owned.bucket.scores[slot] = arriving.score;
      numbers[position] = owned.first_row + slot;
    }
    warp.sync();
  }

  SPARRING_DEVICE void depart(const device::Warp& warp, uint32_t position, const Rank& rank,
                              uint64_t source) const {
    if (departs.leaves == nullptr || warp.lane() != 0) return;
    departs.leaves[position] = 1;
    departs.keys[position] = rank.key;
    departs.scores[position] = rank.score;
    departs.sources[position] = source;
  }

  // REQUIRES: all allowed slots are occupied, and there is at least one.
  SPARRING_DEVICE uint32_t first_to_leave(const device::Warp& warp, const Owned& owned,
                                          Rank& leaving) const {
    uint64_t lowest = ~uint64_t{0};
    SPARRING_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const bool is_allowed = (owned.allowed >> (8 * i) & 1u) != 0;
      if (is_allowed && owned.scores[i] < lowest) lowest = owned.scores[i];
    }
    for (unsigned step = 16; step != 0; step /= 2) {
      const uint64_t other = warp.shuffle_xor(lowest, step);
      if (other < lowest) lowest = other;
    }
    // Keys are in other cache lines, so they are read only if scores are equal.
    int64_t smallest = INT64_MAX;
    uint32_t slot = kDeviceSlots;
    SPARRING_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      if ((owned.allowed >> (8 * i) & 1u) == 0 || owned.scores[i] != lowest) continue;
      const int64_t key = owned.bucket.entries[4 * warp.lane() + i].key;
      if (slot == kDeviceSlots || key < smallest) {
        smallest = key;
        slot = 4 * warp.lane() + i;
      }
    }
    for (unsigned step = 16; step != 0; step /= 2) {
      const int64_t other = warp.shuffle_xor(smallest, step);
      const uint32_t other_slot = warp.shuffle_xor(slot, step);
      if (other_slot != kDeviceSlots && (slot == kDeviceSlots || other < smallest)) {
        smallest = other;
        slot = other_slot;
      }
    }
    leaving = {lowest, smallest};
    return slot;
  }
};

// Copies evicted rows, in the order of the keys that evicted them.
template <class Word>
struct CopyEvicted {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceRowsView rows;
  uint64_t row_bytes;
  device::RowShape shape;
  DepartureArrays departs;     // device
  const uint32_t* departures;  // (count) positions of the call, ascending, device
  uint64_t count;
  const char* call_rows;  // (n, call_stride) bytes, device: the rows of the call. NULL: rows of
                          // keys that were evicted again are created later, in out_rows
  uint64_t call_stride;
  void** made_at;        // (n) device, only if call_rows is NULL: destinations of those rows
  int64_t* out_keys;     // (count) device
  char* out_rows;        // (count, row_bytes) device
  uint64_t* out_scores;  // (count) device

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for_each_row(block, count, [&](uint64_t i, unsigned num_rows) {
      const char* from = nullptr;
      char* to = nullptr;
      if (i < count) {
        const uint32_t position = departures[i];
        const uint64_t source = departs.sources[position];
        out_keys[i] = departs.keys[position];
        out_scores[i] = departs.scores[position];
        char* const out = out_rows + i * row_bytes;
        const auto number = static_cast<uint32_t>(source);
        if (source < DepartureArrays::in_call) {
          from = rows.at(number);
          to = out;
        } else if (call_rows != nullptr) {
          from = call_rows + number * call_stride;
          to = out;
        } else {
          made_at[number] = out;
        }
      }
      device::move_rows<Word, device::Reading::kOnce>(block.warp(), shape, num_rows, from, to);
    });
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_EVICT_KERNELS_H_
