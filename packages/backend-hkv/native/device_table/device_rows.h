// The rows of a device table, in chunks that never move: in device memory up to a limit,
// then in pinned host memory, which kernels access over the bus at the same addresses.
// device_views.h maps row numbers to addresses.
//
// Threads: const methods may run concurrently; all others are exclusive.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_ROWS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_ROWS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "device/memory.h"
#include "device_views.h"

namespace sparring::hkv {

class DeviceRows {
 public:
  // `stream`: for allocating and freeing device memory. `limit`: maximum number of rows.
  DeviceRows(device::Device& device, device::Stream stream, uint64_t row_bytes, uint64_t limit);
  ~DeviceRows();
  DeviceRows(const DeviceRows&) = delete;
  DeviceRows& operator=(const DeviceRows&) = delete;

  // Allocates memory for rows [0, count), up to the limit. `device_bytes`: maximum device
  // memory of rows; 0: unlimited.
  // Throws OutOfDeviceMemory, DeviceError without losing or moving a row.
  void reserve(uint64_t count, uint64_t device_bytes);
  // Allocates capacity for `count` rows in the list of free rows. Throws like reserve().
  void reserve_list(uint64_t count);

  DeviceRowsView view() const { return view_; }
  uint64_t capacity() const { return capacity_; }
  uint32_t* free_rows() const { return free_rows_.as<uint32_t>(); }
  uint64_t list_capacity() const { return free_rows_.num_bytes() / sizeof(uint32_t); }
  uint64_t pinned_bytes() const { return pinned_bytes_; }
  // Bytes of device and pinned memory.
  uint64_t memory_bytes() const;

 private:
  struct Pinned {
    void* memory;
    uint64_t bytes;
  };

  void list_chunk(char* memory);

  device::Device& device_;
  device::Stream stream_;
  uint64_t limit_;
  DeviceRowsView view_{};
  uint64_t capacity_ = 0;
  uint64_t device_bytes_ = 0;
  uint64_t pinned_bytes_ = 0;
  std::vector<char*> chunks_;  // the contents of chunk_list_
  device::Buffer chunk_list_;
  device::Buffer free_rows_;
  std::vector<device::Buffer> in_device_;
  std::vector<Pinned> pinned_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_ROWS_H_
