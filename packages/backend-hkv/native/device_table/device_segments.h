// How kernels change buckets: the positions of a call, sorted stably by head, form
// segments with one head each. One warp owns a segment, and therefore the head and its
// chain. It processes the keys in the order of the call, without a lock, so the result
// is the same as for one key at a time.
//
//   heads       3  3  3 | 7 | 9  9 | n  n  n  n      n = num_heads: skipped
//   positions   0  4  9 | 2 | 1  8 | 3  5  6  7
//
// A warp searches windows of 32 positions for the starts of segments, and processes the
// segments that start there.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_SEGMENTS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_SEGMENTS_H_

#include <cstdint>

#include "device_locate.h"

namespace sparring::hkv {

struct SortedKeys {
  const uint32_t* heads;      // (count) ascending, device
  const uint32_t* positions;  // (count) device
  uint64_t count;
};

// Calls body(head, begin, end) for each segment [begin, end) of `sorted`, on one warp
// each, with all its lanes together.
template <class Body>
SPARRING_DEVICE void for_each_segment(const device::Block& block, const SortedKeys& sorted,
                                      uint32_t num_heads, const Body& body) {
  const device::Warp warp = block.warp();
  for (uint64_t window = block.warp_in_grid() * device::warp_lanes; window < sorted.count;
       window += block.grid_warps() * device::warp_lanes) {
    const uint64_t place = window + warp.lane();
    const uint32_t head = place < sorted.count ? sorted.heads[place] : num_heads;
    const bool begins = head != num_heads && (place == 0 || sorted.heads[place - 1] != head);
    for (uint32_t rest = warp.ballot(begins); rest != 0; rest &= rest - 1) {
      const unsigned lane = device::lowest_one(rest);
      const uint32_t found = warp.shuffle(head, lane);
      const uint64_t begin = window + lane;
      uint64_t end = begin;
      for (uint32_t same = ~uint32_t{0}; same == ~uint32_t{0};) {
        const uint64_t next = end + warp.lane();
        same = warp.ballot(next < sorted.count && sorted.heads[next] == found);
        end += device::num_ones(same);
      }
      body(found, begin, end);
    }
  }
}

// The keys at sorted positions that a warp requests in ascending order. 32 are loaded at a time,
// one per lane, because single loads of a position and then its key would be sequential.
class KeyWindow {
 public:
  struct Key {
    uint32_t position;  // in the call
    int64_t key;
  };

  SPARRING_DEVICE KeyWindow(const device::Warp& warp, const SortedKeys& sorted, const int64_t* keys)
      : warp_(warp), sorted_(sorted), keys_(keys) {}

  // All lanes of the warp must call this together. REQUIRES: place < sorted.count, and ascending.
  SPARRING_DEVICE Key at(uint64_t place) {
    if (place - first_ >= device::warp_lanes) load(place);
    const auto lane = static_cast<unsigned>(place - first_);
    return {warp_.shuffle(position_, lane), warp_.shuffle(key_, lane)};
  }

 private:
  SPARRING_DEVICE void load(uint64_t first) {
    first_ = first;
    const uint64_t own = first + warp_.lane();
    position_ = own < sorted_.count ? sorted_.positions[own] : 0;
    key_ = keys_[position_];
  }

  device::Warp warp_;
  SortedKeys sorted_;
  const int64_t* keys_;
  uint64_t first_ = uint64_t{1} << 63;  // none loaded
  uint32_t position_ = 0;
  int64_t key_ = 0;
};

// ---- a bucket processed by a whole warp: lane l has slots 4l to 4l + 3 ----

SPARRING_DEVICE uint32_t digests_of_lane(const DeviceBucket& bucket, unsigned lane) {
  return reinterpret_cast<const uint32_t*>(bucket.digests)[lane];
}

// The first slot whose byte is set in its lane's word; kDeviceSlots if there is none.
SPARRING_DEVICE uint32_t first_slot(const device::Warp& warp, uint32_t bytes) {
  const uint32_t lanes = warp.ballot(bytes != 0);
  const unsigned lane = lanes != 0 ? device::lowest_one(lanes) : 0;
  const uint32_t chosen = warp.shuffle(bytes, lane);
  return lanes == 0 ? kDeviceSlots : 4 * lane + device::lowest_one(chosen) / 8;
}

// The bytes of the slots below `limit` in this lane's word.
SPARRING_DEVICE uint32_t bytes_below(uint32_t limit, unsigned lane) {
  const uint32_t first = 4 * lane;
  if (limit >= first + 4) return ~uint32_t{0};
  return limit <= first ? 0 : (uint32_t{1} << (8 * (limit - first))) - 1;
}

// The slot of the key; kDeviceSlots if there is none.
SPARRING_DEVICE uint32_t slot_of_key(const device::Warp& warp, const DeviceBucket& bucket,
                                     uint32_t digests, int64_t key, uint8_t digest) {
  uint32_t equal = device::equal_bytes(digests, device::repeated_byte(digest));
  uint32_t hit = 0;
  while (equal != 0) {
    const uint32_t byte = device::lowest_one(equal) / 8;
    const uint32_t mask = uint32_t{0xff} << (8 * byte);
    equal &= ~mask;
    if (bucket.entries[4 * warp.lane() + byte].key == key) hit = mask;
  }
  return first_slot(warp, hit);
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_SEGMENTS_H_
