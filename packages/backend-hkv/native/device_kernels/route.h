// The partition of each key, and the keys of each rank, on a device.
#ifndef SPARRING_HKV_DEVICE_KERNELS_ROUTE_H_
#define SPARRING_HKV_DEVICE_KERNELS_ROUTE_H_

#include <cstdint>

#include "device/memory.h"

namespace sparring::device_kernels {

struct Partition {
  const int64_t* keys;   // (u) int64, device
  int64_t count;         // u
  uint16_t* partitions;  // out (u) uint16, device, 0 to 4,095
};
void partition(device::Device& device, device::Stream stream, const Partition& arguments);

// Groups keys by owner: the keys of rank r are keys[order[i]] for i from offsets[r] to
// offsets[r + 1], in their original order. A stable sort of (owner, position) by the bits
// of the owner. Does not wait for the device.
// REQUIRES: 0 <= owners[p] < world_size for every p.
// Throws OutOfDeviceMemory, DeviceError.
struct Route {
  const int64_t* keys;    // (u) int64, device
  int64_t count;          // u, below 2^31
  const int32_t* owners;  // (4096) int32, device: the rank of each partition
  int32_t world_size;
  int64_t* order;         // out (u) int64, device
  int64_t* offsets;       // out (world_size + 1) int64, device, from 0 to u
};
void route(device::Device& device, device::Stream stream, const Route& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_ROUTE_H_
