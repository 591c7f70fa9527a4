// Counters on the device: the part of the table's state that only kernels change, and the
// results of one call for the host.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_COUNTERS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_COUNTERS_H_

#include <cstdint>

#include "device/atomics.h"
#include "device/warp.h"

namespace sparring::hkv {

struct DeviceCounters {
  // Of the table. Rows [0, next_row) were allocated before, num_free_rows of them
  // are in the free list; likewise overflow buckets.
  uint64_t size;
  uint32_t next_row;
  uint32_t num_free_rows;
  uint32_t next_overflow;
  uint32_t num_free_overflow;

  // Of the call. 0 between calls, after the settling kernel has added them to the table's.
  uint32_t num_missing;         // keys that need a row and a slot
  uint32_t num_returned;        // rows that were allocated and not used
  uint32_t num_inserted;        // slots that were filled without evicting another key
  uint32_t num_removed;         // slots that were emptied
  uint32_t overflow_needed;     // an estimate
  uint32_t overflow_taken;
  uint32_t overflow_released;

  // Of the previous call, for the host.
  uint32_t last_removed;
};

// Free rows and overflow buckets, as stacks.
struct DeviceFreeLists {
  uint32_t* rows;       // (rows_capacity) device
  uint32_t* overflow;   // (overflow capacity) device
  uint64_t rows_capacity;
  // Rows that the current insertion allocated and does not need.
  const uint32_t* returned;  // (num_returned) device, or NULL
};

// Counts the lanes whose condition is true, with one atomic per warp.
SPARRING_DEVICE void add_lanes(const device::Warp& warp, uint32_t* counter, bool counts) {
  const uint32_t lanes = warp.ballot(counts);
  if (warp.lane() == 0 && lanes != 0) device::atomic_add(counter, device::num_ones(lanes));
}

// Gathers the counters of several tables. One warp.
struct CopyCounters {
  static constexpr unsigned block_threads = device::warp_lanes;
  static constexpr bool is_batched = true;
  const DeviceCounters* from;
  DeviceCounters* to;
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    if (block.thread() == 0) *to = *from;
  }
};

// Adds the counts of a call to the counts of the table. One warp.
struct SettleCounters {
  enum class Work { kInsertChained, kErase, kInsertOrEvict, kSplit };
  static constexpr unsigned block_threads = device::warp_lanes;
  static constexpr bool is_batched = true;
  DeviceCounters* counters;
  DeviceFreeLists free;
  Work work;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    DeviceCounters now = *counters;
    warp.sync();
    if (work == Work::kSplit) {
      // In the middle of a call whose counts are added later.
      now.num_free_overflow += now.overflow_released;
      now.overflow_released = 0;
      if (warp.lane() == 0) *counters = now;
      return;
    }
    if (work == Work::kInsertChained) take_rows(warp, now);
    // The erasing kernel has already put the rows of removed slots into the list.
    if (work == Work::kErase && free.rows != nullptr) now.num_free_rows += now.num_removed;
    const uint32_t from_list = now.overflow_taken < now.num_free_overflow ? now.overflow_taken
                                                                          : now.num_free_overflow;
    now.num_free_overflow -= from_list;
    now.next_overflow += now.overflow_taken - from_list;
    now.num_free_overflow += now.overflow_released;
    now.size += now.num_inserted;
    now.size -= now.num_removed;
    now.last_removed = now.num_removed;
    now.num_missing = now.num_returned = now.num_inserted = now.num_removed = 0;
    now.overflow_needed = now.overflow_taken = now.overflow_released = 0;
    if (warp.lane() == 0) *counters = now;
  }

 private:
  SPARRING_DEVICE void take_rows(const device::Warp& warp, DeviceCounters& now) const {
    const uint32_t from_list =
        now.num_missing < now.num_free_rows ? now.num_missing : now.num_free_rows;
    now.num_free_rows -= from_list;
    now.next_row += now.num_missing - from_list;
    // If the list has no capacity for them, they are lost until the table is cleared. This happens
    // only if the caller repeats a key within a call.
    const uint64_t room =
        free.rows_capacity < now.num_free_rows ? 0 : free.rows_capacity - now.num_free_rows;
    const uint32_t kept =
        now.num_returned < room ? now.num_returned : static_cast<uint32_t>(room);
    for (uint32_t i = warp.lane(); i < kept; i += device::warp_lanes) {
      free.rows[now.num_free_rows + i] = free.returned[i];
    }
    now.num_free_rows += kept;
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_COUNTERS_H_
