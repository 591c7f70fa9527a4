// Kernels that look up keys, 32 per warp: find, locate and touch. And the erase of
// tables without chains.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_READ_KERNELS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_READ_KERNELS_H_

#include <cstdint>

#include "device_copy.h"
#include "device_counters.h"
#include "device_locate.h"
#include "score_rule.h"

namespace sparring::hkv {

// Copies the rows of keys to a dense array, with zeros for missing ones. Changes nothing.
template <class Word>
struct FindRows {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;
  DeviceRowsView rows;
  const int64_t* keys;  // (count) device
  uint64_t count;
  uint64_t begin;  // first requested byte of the row
  device::RowShape shape;  // of the requested bytes
  char* out;       // (count, out_stride) bytes, device
  uint64_t out_stride;
  uint8_t* found;  // (count) device

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    Locator<false> locator(warp, index);
    for_each_key(block, keys, count, [&](const LaneKey& lane_key, unsigned num_keys) {
      const DeviceLocation at = locator.locate(lane_key);
      const bool is_found = at.row != kNoDeviceRow;
      if (lane_key.is_wanted) found[lane_key.position] = is_found ? 1 : 0;
      device::move_rows<Word, device::Reading::kOnce>(
          warp, shape, num_keys, is_found ? rows.at(at.row) + begin : nullptr,
          lane_key.is_wanted ? out + lane_key.position * out_stride : nullptr);
    });
  }
};

// The row of each key, and the input of a sort by bucket: the head of each key that a later
// kernel must process, and num_heads for the others.
struct LocateKeys {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr bool is_batched = true;
  DeviceIndexView index;
  const int64_t* keys;  // (count) device
  uint64_t count;
  bool sorts_missing;   // the later kernel processes missing keys; else existing ones
  uint32_t* numbers;    // out (count) device
  uint32_t* heads;      // out (count) device, or NULL
  uint32_t* positions;  // out (count) device: 0, 1, 2, ...; or NULL
  uint8_t* missing;     // out (count) device: 1 where the key is missing; or NULL
  DeviceCounters* counters;  // increments num_missing; or NULL

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    Locator<false> locator(warp, index);
    for_each_key(block, keys, count, [&](const LaneKey& lane_key, unsigned) {
      const DeviceLocation at = locator.locate(lane_key);
      const uint64_t position = lane_key.position;
      const bool is_missing = at.row == kNoDeviceRow;
      if (lane_key.is_wanted) {
        numbers[position] = at.row;
        if (missing != nullptr) missing[position] = is_missing ? 1 : 0;
        if (heads != nullptr) {
          heads[position] = is_missing == sorts_missing
                                ? index.head_of(index.hash(lane_key.key))
                                : index.num_heads;
          positions[position] = static_cast<uint32_t>(position);
        }
      }
      if (counters != nullptr) {
        add_lanes(warp, &counters->num_missing, lane_key.is_wanted && is_missing);
      }
    });
  }
};

// Updates the scores of existing keys by the rule of the call.
struct TouchKeys {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr bool is_batched = true;
  DeviceIndexView index;
  ScoreRule rule;
  const int64_t* keys;     // (count) device
  const uint64_t* scores;  // (count) device, or NULL
  uint64_t count;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    Locator<true> locator(warp, index);
    for_each_key(block, keys, count, [&](const LaneKey& lane_key, unsigned) {
      const DeviceLocation at = locator.locate(lane_key);
      if (at.row == kNoDeviceRow) return;
      const DeviceBucket bucket = at.link != 0
                                      ? index.overflow.at(at.link - 1)
                                      : index.heads.at(index.head_of(index.hash(lane_key.key)));
      uint64_t& score = bucket.scores[at.slot];
      score = rule.updated(score, scores == nullptr ? nullptr : scores + lane_key.position);
    });
  }
};

// The same if LocateKeys found the rows.
// REQUIRES: a table without chains, whose slots own their rows.
struct TouchRows {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr bool is_batched = true;
  DeviceIndexView index;
  ScoreRule rule;
  const int64_t* keys;      // (count) device
  const uint32_t* numbers;  // (count) device: the row of each key, or kNoDeviceRow
  const uint64_t* scores;   // (count) device, or NULL
  uint64_t count;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      if (numbers[i] == kNoDeviceRow) continue;
      const uint32_t head = index.head_of(index.hash(keys[i]));
      uint64_t& score = index.heads.at(head).scores[numbers[i] - index.first_row(head)];
      score = rule.updated(score, scores == nullptr ? nullptr : scores + i);
    }
  }
};

// Empties the slots of keys that LocateKeys found.
// REQUIRES: a table without chains, whose slots own their rows.
struct EraseUnchained {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;
  const int64_t* keys;      // (count) device
  const uint32_t* numbers;  // (count) device: the row of each key, or kNoDeviceRow
  uint64_t count;
  DeviceCounters* counters;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    const uint64_t end = (count + device::warp_lanes - 1) / device::warp_lanes * device::warp_lanes;
    for (uint64_t i = block.thread_in_grid(); i < end; i += block.grid_threads()) {
      bool is_erased = false;
      if (i < count && numbers[i] != kNoDeviceRow) {
        const uint32_t head = index.head_of(index.hash(keys[i]));
        const uint32_t slot = numbers[i] - index.first_row(head);
        // Other threads empty slots of the same word and, if keys are repeated, this slot.
        const uint32_t byte = uint32_t{0xff} << (8 * (slot % 4));
        auto* word = reinterpret_cast<uint32_t*>(index.heads.at(head).digests) + slot / 4;
        is_erased = (device::atomic_and(word, ~byte) & byte) != 0;
      }
      add_lanes(warp, &counters->num_removed, is_erased);
    }
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_READ_KERNELS_H_
