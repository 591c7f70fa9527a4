// Insertion into tables with chains, which does not evict.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_INSERT_KERNELS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_INSERT_KERNELS_H_

#include <cstdint>

#include "device_counters.h"
#include "device_segments.h"
#include "score_rule.h"

namespace sparring::hkv {

// Number of overflow buckets that the insertion of these keys will use.
struct ForecastOverflow {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;
  SortedKeys sorted;
  DeviceCounters* counters;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    for_each_segment(block, sorted, index.num_heads, [&](uint32_t head, uint64_t begin,
                                                         uint64_t end) {
      DeviceBucket bucket = index.heads.at(head);
      for (uint32_t link = *bucket.link; link != 0; link = *bucket.link) {
        bucket = index.overflow.at(link - 1);
      }
      const uint32_t empty = device::equal_bytes(digests_of_lane(bucket, warp.lane()), 0);
      uint32_t num_empty = 0;
      for (uint32_t byte = 0; byte < 4; ++byte) {
        num_empty += device::num_ones(warp.ballot((empty >> (8 * byte) & 1u) != 0));
      }
      const uint64_t num_keys = end - begin;
      if (warp.lane() == 0 && num_keys > num_empty) {
        device::atomic_add(
            &counters->overflow_needed,
            static_cast<uint32_t>((num_keys - num_empty + kDeviceSlots - 1) / kDeviceSlots));
      }
    });
  }
};

// Assigns a slot and a row number to each key. The key at position j of the sorted order
// gets the j-th free row, first from the top of the list and then new ones.
struct InsertKeys {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr bool is_batched = true;
  DeviceIndexView index;
  SortedKeys sorted;  // by head, the missing keys of the call first
  ScoreRule rule;
  const int64_t* keys;     // (n) device
  const uint64_t* scores;  // (n) device, or NULL
  DeviceFreeLists free;
  uint32_t* returned;  // out (number of missing keys) device
  uint32_t* numbers;   // out (n) device: the row of each key that was inserted
  DeviceCounters* counters;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    KeyWindow window(warp, sorted, keys);
    for_each_segment(block, sorted, index.num_heads,
                     [&](uint32_t head, uint64_t begin, uint64_t end) {
                       uint32_t num_inserted = 0;
                       for (uint64_t place = begin; place < end; ++place) {
                         num_inserted += insert(warp, head, place, window.at(place));
                       }
                       if (warp.lane() == 0) {
                         device::atomic_add(&counters->num_inserted, num_inserted);
                       }
                     });
  }

 private:
  SPARRING_DEVICE uint32_t insert(const device::Warp& warp, uint32_t head, uint64_t place,
                                  const KeyWindow::Key& wanted) const {
    const auto [position, key] = wanted;
    const uint8_t digest = digest_of(index.hash(key));
    const uint32_t row = row_at(static_cast<uint32_t>(place));
    DeviceBucket bucket = index.heads.at(head);
    uint32_t empty;
    for (;;) {
      const uint32_t digests = digests_of_lane(bucket, warp.lane());
      // Duplicate keys violate the contract, but must not damage the table.
      const uint32_t twin = slot_of_key(warp, bucket, digests, key, digest);
      if (twin != kDeviceSlots) {
        if (warp.lane() == 0) {
          numbers[position] = bucket.entries[twin].row;
          returned[device::atomic_add(&counters->num_returned, 1u)] = row;
        }
        warp.sync();
        return 0;
      }
      empty = first_slot(warp, device::equal_bytes(digests, 0));
      if (empty != kDeviceSlots) break;
      uint32_t link = *bucket.link;
      warp.sync();
      if (link == 0) link = append(warp, bucket);
      bucket = index.overflow.at(link - 1);
    }
    if (warp.lane() == 0) {
      store_entry(bucket.entries + empty, {key, row, 0});
      bucket.digests[empty] = digest;
      if (index.heads.has_scores) {
        bucket.scores[empty] = rule.initial(scores == nullptr ? nullptr : scores + position);
      }
      numbers[position] = row;
    }
    warp.sync();
    return 1;
  }

  SPARRING_DEVICE uint32_t row_at(uint32_t place) const {
    const uint32_t num_free = counters->num_free_rows;
    return place < num_free ? free.rows[num_free - 1 - place]
                            : counters->next_row + (place - num_free);
  }

  // Links an empty overflow bucket after this one.
  SPARRING_DEVICE uint32_t append(const device::Warp& warp, const DeviceBucket& bucket) const {
    uint32_t link = 0;
    if (warp.lane() == 0) {
      const uint32_t taken = device::atomic_add(&counters->overflow_taken, 1u);
      const uint32_t num_free = counters->num_free_overflow;
      const uint32_t number = taken < num_free ? free.overflow[num_free - 1 - taken]
                                               : counters->next_overflow + (taken - num_free);
      link = number + 1;
      *index.overflow.at(number).link = 0;
      *bucket.link = link;
    }
    link = warp.shuffle(link, 0);
    warp.sync();
    return link;
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_INSERT_KERNELS_H_
