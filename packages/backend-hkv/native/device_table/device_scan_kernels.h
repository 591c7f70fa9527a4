// Kernels that process whole buckets: the scan, and the selection of the lowest scores of
// a table.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_SCAN_KERNELS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_SCAN_KERNELS_H_

#include <cstdint>

#include "device_counters.h"
#include "device_segments.h"

namespace sparring::hkv {

// Heads in the order of their hashes, which is the order of a scan.
struct HeadOrder {
  uint32_t num_heads;
  bool is_growing;

  SPARRING_HOST_DEVICE uint32_t bits() const {
    uint32_t bits = 0;
    while ((uint64_t{1} << bits) < num_heads) ++bits;
    return bits;
  }
  // The head with this ordinal.
  SPARRING_HOST_DEVICE uint32_t head(uint64_t ordinal) const {
    if (!is_growing) return static_cast<uint32_t>(ordinal);
    if (num_heads == 1) return 0;
    return static_cast<uint32_t>(reversed_bits(ordinal << (64 - bits())));
  }
  SPARRING_HOST_DEVICE uint64_t ordinal(uint64_t hash) const {
    if (!is_growing) return multiply_high(hash, num_heads);
    return num_heads == 1 ? 0 : hash >> (64 - bits());
  }
};

// The entries of heads [first, first + count) in scan order whose hash is at least
// `from`: counts or writes them.
struct ScanHeads {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;
  HeadOrder order;
  uint64_t first;
  uint64_t count;
  uint64_t from;
  uint32_t* places;  // (count) device: output, the entries of each head; or input, their destination
  bool writes;
  // Outputs, device; only if it writes.
  uint64_t* hashes;
  int64_t* keys;
  uint32_t* rows;
  uint64_t* scores;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    for (uint64_t i = block.warp_in_grid(); i < count; i += block.grid_warps()) {
      uint32_t place = writes ? places[i] : 0;
      DeviceBucket bucket = index.heads.at(order.head(first + i));
      for (;;) {
        const uint32_t digests = digests_of_lane(bucket, warp.lane());
        for (uint32_t byte = 0; byte < 4; ++byte) {
          const uint32_t slot = 4 * warp.lane() + byte;
          bool is_in = (digests >> (8 * byte) & 0xffu) != 0;
          DeviceEntry entry{};
          uint64_t hash = 0;
          if (is_in) {
            entry = load_entry(bucket.entries + slot);
            hash = index.hash(entry.key);
            is_in = hash >= from;
          }
          const uint32_t lanes = warp.ballot(is_in);
          if (is_in && writes) {
            const uint64_t at =
                place + device::num_ones(lanes & device::lanes_below(warp.lane()));
            hashes[at] = hash;
            keys[at] = entry.key;
            rows[at] = entry.row;
            scores[at] = index.heads.has_scores ? bucket.scores[slot] : 0;
          }
          place += device::num_ones(lanes);
        }
        const uint32_t link = index.has_chains ? *bucket.link : 0;
        if (link == 0) break;
        bucket = index.overflow.at(link - 1);
      }
      if (!writes && warp.lane() == 0) places[i] = place;
    }
  }
};

// ---- the lowest scores: a radix select ----
//
// The rank of an entry has 128 bits: its score, then its key with the sign flipped.
// Sixteen rounds determine the rank of the last entry to evict, 8 bits per round: a
// histogram of the digits of all entries that agree so far, then the digit that
// contains the wanted entry. Nothing waits, and the memory is 2 KiB for tables of any
// size.
//

struct RankSearch {
  uint64_t score;   // the bits determined so far
  uint64_t key;     // likewise, with the sign flipped
  uint64_t wanted;  // number of entries to evict among those that agree so far
  uint32_t histogram[256];
};

SPARRING_HOST_DEVICE uint64_t ordered_key(int64_t key) {
  return static_cast<uint64_t>(key) ^ uint64_t{1} << 63;
}

struct CountDigits {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr size_t shared_bytes = 256 * sizeof(uint32_t);
  DeviceIndexView index;
  const DeviceCounters* counters;
  RankSearch* search;
  uint32_t round;  // 0 to 7: digits of the score; 8 to 15: of the key

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    auto* const histogram = block.shared<uint32_t>();
    for (unsigned i = block.thread(); i < 256; i += block.num_threads()) histogram[i] = 0;
    block.sync();
    const uint64_t num_buckets = uint64_t{index.num_heads} + counters->next_overflow;
    for (uint64_t number = block.warp_in_grid(); number < num_buckets;
         number += block.grid_warps()) {
      const DeviceBucket bucket = number < index.num_heads
                                      ? index.heads.at(static_cast<uint32_t>(number))
                                      : index.overflow.at(
                                            static_cast<uint32_t>(number - index.num_heads));
      const unsigned lane = block.warp().lane();
      const uint32_t digests = digests_of_lane(bucket, lane);
      for (uint32_t byte = 0; byte < 4; ++byte) {
        if ((digests >> (8 * byte) & 0xffu) == 0) continue;
        const uint32_t slot = 4 * lane + byte;
        const uint32_t shift = 56 - 8 * (round % 8);
        const uint64_t score = bucket.scores[slot];
        uint64_t word = score;
        uint64_t fixed = search->score;
        if (round >= 8) {
          if (score != search->score) continue;
          word = ordered_key(bucket.entries[slot].key);
          fixed = search->key;
        }
        if (shift != 56 && ((word ^ fixed) >> (shift + 8)) != 0) continue;
        device::atomic_add(histogram + (word >> shift & 0xffu), 1u);
      }
    }
    block.sync();
    for (unsigned i = block.thread(); i < 256; i += block.num_threads()) {
      if (histogram[i] != 0) device::atomic_add(search->histogram + i, histogram[i]);
    }
  }
};

// One warp; lane l has digits 8l to 8l + 7.
struct FixDigit {
  static constexpr unsigned block_threads = device::warp_lanes;
  RankSearch* search;
  uint32_t round;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    uint32_t counts[8];
    uint64_t own = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      counts[i] = search->histogram[8 * warp.lane() + i];
      own += counts[i];
    }
    uint64_t sum = own;
    for (unsigned step = 1; step < device::warp_lanes; step *= 2) {
      const uint64_t other = warp.shuffle_up(sum, step);
      if (warp.lane() >= step) sum += other;
    }
    const uint64_t wanted = search->wanted;
    warp.sync();
    uint64_t before = sum - own;
    for (uint32_t i = 0; i < 8; ++i) {
      search->histogram[8 * warp.lane() + i] = 0;
      if (before < wanted && wanted <= before + counts[i]) {
        const uint64_t digit = uint64_t{8 * warp.lane() + i} << (56 - 8 * (round % 8));
        (round < 8 ? search->score : search->key) |= digit;
        search->wanted = wanted - before;
      }
      before += counts[i];
    }
  }
};

// Collects all entries whose rank is at most the one that was found, in any order.
struct CollectLowest {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;
  const DeviceCounters* counters;
  const RankSearch* search;
  uint32_t* num_collected;  // initially 0
  uint64_t* ordered_keys;   // out (wanted) device
  uint64_t* scores;         // out (wanted) device
  uint32_t* rows;           // out (wanted) device

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    const uint64_t num_buckets = uint64_t{index.num_heads} + counters->next_overflow;
    for (uint64_t number = block.warp_in_grid(); number < num_buckets;
         number += block.grid_warps()) {
      const DeviceBucket bucket = number < index.num_heads
                                      ? index.heads.at(static_cast<uint32_t>(number))
                                      : index.overflow.at(
                                            static_cast<uint32_t>(number - index.num_heads));
      const uint32_t digests = digests_of_lane(bucket, warp.lane());
      for (uint32_t byte = 0; byte < 4; ++byte) {
        const uint32_t slot = 4 * warp.lane() + byte;
        bool is_in = (digests >> (8 * byte) & 0xffu) != 0;
        uint64_t score = 0;
        DeviceEntry entry{};
        if (is_in) {
          score = bucket.scores[slot];
          is_in = score <= search->score;
        }
        if (is_in) {
          entry = load_entry(bucket.entries + slot);
          is_in = score < search->score || ordered_key(entry.key) <= search->key;
        }
        const uint32_t lanes = warp.ballot(is_in);
        uint32_t place = 0;
        if (lanes != 0 && warp.lane() == 0) {
          place = device::atomic_add(num_collected, device::num_ones(lanes));
        }
        place = warp.shuffle(place, 0) +
                device::num_ones(lanes & device::lanes_below(warp.lane()));
        if (!is_in) continue;
        ordered_keys[place] = ordered_key(entry.key);
        scores[place] = score;
        rows[place] = entry.row;
      }
    }
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_SCAN_KERNELS_H_
