// Erases from tables with chains, and splits their heads. Chains stay dense.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_ERASE_KERNELS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_ERASE_KERNELS_H_

#include <cstdint>

#include "device_counters.h"
#include "device_segments.h"

namespace sparring::hkv {

// Empties the slots of the keys; the last entry of the chain fills the gap.
struct EraseChained {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;
  SortedKeys sorted;    // by head, existing keys first
  const int64_t* keys;  // (n) device
  DeviceFreeLists free;
  DeviceCounters* counters;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    for_each_segment(block, sorted, index.num_heads,
                     [&](uint32_t head, uint64_t begin, uint64_t end) {
                       for (uint64_t place = begin; place < end; ++place) {
                         erase(warp, head, keys[sorted.positions[place]]);
                       }
                     });
  }

 private:
  SPARRING_DEVICE void erase(const device::Warp& warp, uint32_t head, int64_t key) const {
    const uint8_t digest = digest_of(index.hash(key));
    DeviceBucket hole{};
    uint32_t slot = kDeviceSlots;
    DeviceBucket before{};
    DeviceBucket last = index.heads.at(head);
    uint32_t last_link = 0;  // the link to `last`; 0: it is the head
    for (;;) {
      if (slot == kDeviceSlots) {
        slot = slot_of_key(warp, last, digests_of_lane(last, warp.lane()), key, digest);
        hole = last;
      }
      const uint32_t link = *last.link;
      if (link == 0) break;
      before = last;
      last = index.overflow.at(link - 1);
      last_link = link;
    }
    warp.sync();
    if (slot == kDeviceSlots) return;  // a duplicate key

    // The last occupied slot of the last bucket.
    const uint32_t empty = device::equal_bytes(digests_of_lane(last, warp.lane()), 0);
    const uint32_t lanes = warp.ballot(empty != ~uint32_t{0});
    const unsigned lane = 31 - device::leading_zeros(lanes);
    const uint32_t occupied = ~warp.shuffle(empty, lane);
    const uint32_t mover = 4 * lane + (31 - device::leading_zeros(occupied)) / 8;
    // Whether the removed entry is the only one of the bucket.
    const bool is_alone = mover == first_slot(warp, ~empty);
    if (warp.lane() == 0) {
      const uint32_t row = hole.entries[slot].row;
      if (last.entries + mover != hole.entries + slot) {
        store_entry(hole.entries + slot, load_entry(last.entries + mover));
        hole.digests[slot] = last.digests[mover];
        if (index.heads.has_scores) hole.scores[slot] = last.scores[mover];
      }
      last.digests[mover] = 0;
      if (is_alone && last_link != 0) {
        *before.link = 0;
        free.overflow[counters->num_free_overflow +
                      device::atomic_add(&counters->overflow_released, 1u)] = last_link - 1;
      }
      free.rows[counters->num_free_rows + device::atomic_add(&counters->num_removed, 1u)] = row;
    }
    warp.sync();
  }
};

// Doubles the heads of a growing index: head h splits into h and h + num_heads.
// One warp reads a chain bucket by bucket and distributes its entries to two new
// chains. Buckets that were read are reused, and the remaining ones are released.
// The buckets suffice: t buckets contain at most 128 t entries, and two dense chains
// of so many entries have at most t + 1 buckets, one of which is the new head.
struct SplitHeads {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;  // with the old number of heads, and the segment of the new ones
  DeviceFreeLists free;
  DeviceCounters* counters;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t head = block.warp_in_grid(); head < index.num_heads;
         head += block.grid_warps()) {
      split(block.warp(), static_cast<uint32_t>(head));
    }
  }

 private:
  struct Chain {
    DeviceBucket last;
    uint32_t filled = 0;  // number of used slots of `last`
  };

  SPARRING_DEVICE void split(const device::Warp& warp, uint32_t head) const {
    Chain lower{index.heads.at(head)};
    Chain upper{index.heads.at(head + index.num_heads)};
    uint32_t spare = 0;  // link to the free buckets that were read
    DeviceBucket bucket = lower.last;
    uint32_t bucket_link = 0;
    for (;;) {
      const unsigned lane = warp.lane();
      const uint32_t digests = digests_of_lane(bucket, lane);
      DeviceEntry entries[4] = {};
      uint64_t scores[4] = {};
      for (uint32_t i = 0; i < 4; ++i) {
        if ((digests >> (8 * i) & 0xffu) == 0) continue;
        entries[i] = load_entry(bucket.entries + 4 * lane + i);
        if (index.heads.has_scores) scores[i] = bucket.scores[4 * lane + i];
      }
      const uint32_t next = *bucket.link;
      warp.sync();
      reinterpret_cast<uint32_t*>(bucket.digests)[lane] = 0;
      if (lane == 0) *bucket.link = bucket_link == 0 ? 0 : spare;
      if (bucket_link != 0) spare = bucket_link;
      warp.sync();
      for (uint32_t i = 0; i < 4; ++i) {
        const auto digest = static_cast<uint8_t>(digests >> (8 * i));
        const bool goes_up =
            (reversed_bits(index.hash(entries[i].key)) & index.num_heads) != 0;
        append(warp, lower, spare, digest != 0 && !goes_up, digest, entries[i], scores[i]);
        append(warp, upper, spare, digest != 0 && goes_up, digest, entries[i], scores[i]);
      }
      if (next == 0) break;
      bucket = index.overflow.at(next - 1);
      bucket_link = next;
    }
    while (spare != 0) {
      const uint32_t next = *index.overflow.at(spare - 1).link;
      if (warp.lane() == 0) {
        free.overflow[counters->num_free_overflow +
                      device::atomic_add(&counters->overflow_released, 1u)] = spare - 1;
      }
      spare = next;
    }
  }

  SPARRING_DEVICE void append(const device::Warp& warp, Chain& chain, uint32_t& spare, bool is_in,
                              uint8_t digest, const DeviceEntry& entry, uint64_t score) const {
    const uint32_t lanes = warp.ballot(is_in);
    const uint32_t slot = chain.filled + device::num_ones(lanes & device::lanes_below(warp.lane()));
    chain.filled += device::num_ones(lanes);
    if (is_in && slot < kDeviceSlots) put(chain.last, slot, digest, entry, score);
    if (chain.filled <= kDeviceSlots) return;
    const DeviceBucket added = index.overflow.at(spare - 1);
    const uint32_t next_spare = *added.link;
    warp.sync();
    if (warp.lane() == 0) {
      *chain.last.link = spare;
      *added.link = 0;
    }
    warp.sync();
    spare = next_spare;
    chain.last = added;
    chain.filled -= kDeviceSlots;
    if (is_in && slot >= kDeviceSlots) put(added, slot - kDeviceSlots, digest, entry, score);
  }

  SPARRING_DEVICE void put(const DeviceBucket& bucket, uint32_t slot, uint8_t digest,
                           const DeviceEntry& entry, uint64_t score) const {
    store_entry(bucket.entries + slot, entry);
    bucket.digests[slot] = digest;
    if (index.heads.has_scores) bucket.scores[slot] = score;
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_ERASE_KERNELS_H_
