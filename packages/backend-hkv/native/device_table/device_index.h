// The memory of a device table's index: segments of heads and of overflow
// buckets, and the list of free overflow buckets. See device_bucket.h.
//
// Threads: const methods may run concurrently; all others are exclusive.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_INDEX_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_INDEX_H_

#include <cstdint>
#include <vector>

#include "device/memory.h"
#include "device_layout.h"
#include "device_views.h"

namespace sparring::hkv {

class DeviceIndex {
 public:
  // `stream`: for allocating, filling and freeing all memory.
  // Throws OutOfDeviceMemory, DeviceError.
  DeviceIndex(device::Device& device, device::Stream stream, const DeviceLayout& layout,
              bool has_scores, uint64_t seed);

  DeviceIndexView view() const { return view_; }
  uint32_t* free_overflow() const { return free_overflow_.as<uint32_t>(); }
  uint64_t num_heads() const { return view_.num_heads; }
  uint64_t overflow_capacity() const { return overflow_capacity_; }
  uint64_t memory_bytes() const;
  // If there are more rows than this, the heads should double. Unlimited for a fixed index.
  uint64_t comfortable_rows() const {
    return view_.is_growing ? num_heads() * kDeviceSlots / 4 * 3 : ~uint64_t{0};
  }
  bool can_double() const { return num_heads() < uint64_t{1} << (kMaxSegments - 1); }

  // Allocates at least `count` overflow buckets, up to the limit of the layout.
  // Throws OutOfDeviceMemory, DeviceError without changing anything.
  void reserve_overflow(uint64_t count);

  // Empties all buckets and keeps the memory.
  void clear();

  // Allocates memory for twice as many heads. `prepare` adds it to the view and `finish`
  // changes the number of heads; SplitHeads runs in between. Throws as above.
  // REQUIRES: growing, can_double().
  void prepare_doubling();
  void finish_doubling() { view_.num_heads *= 2; }

 private:
  char* add_segment(uint64_t num_buckets);
  void empty(const device::Buffer& segment);

  device::Device& device_;
  device::Stream stream_;
  bool has_scores_;
  bool has_links_;
  uint64_t max_overflow_;
  DeviceIndexView view_{};
  uint64_t overflow_capacity_ = 0;
  uint32_t num_overflow_segments_ = 0;
  device::Buffer free_overflow_;
  std::vector<device::Buffer> segments_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_INDEX_H_
