// Finds the distinct ids of a batch, and the position of each id among them, on a device.
//
//   slots   | 7 | . | 0 | . | 3 | ...     4 bytes each, at least twice as many as ids
//
// A slot contains the position of an id in the batch, which represents that id; `.` is
// empty. No id is reserved, because ids are compared in the batch. Each id finds or
// takes a slot by linear probing and stores the minimum position in it, so that finally
// each slot contains the first occurrence of its id. A prefix sum over the first
// occurrences numbers the keys, independently of the order of threads.
//
// Memory traffic for n ids: 8 n read; n atomics on slots in a table of 8 n to 16 n bytes;
// 8 n read again at the positions found; 4 n flags written and summed; 8 u keys and 8 n
// inverse written.
#ifndef SPARRING_HKV_DEVICE_KERNELS_DEDUP_H_
#define SPARRING_HKV_DEVICE_KERNELS_DEDUP_H_

#include <cstdint>

#include "device/memory.h"

namespace sparring::device_kernels {

// Maximum number of ids per call.
inline constexpr int64_t kMostIds = 0x7fffffff;

// Equal ids in different segments are different keys. The keys of a segment are contiguous, in the
// order of segments.
//
// Keys are in the order of their first occurrence; ids[i] == keys[inverse[i]]. The
// result does not depend on the order of threads. Does not wait for the device.
// Throws OutOfDeviceMemory, DeviceError.
struct Dedup {
  const int64_t* ids;  // (n) int64, device
  int64_t count;       // n, at most kMostIds
  int64_t* keys;       // out (n) int64, device; the first u are written
  int64_t* inverse;    // out (n) int64, device
  int64_t* num_keys;   // out (1) int64, device: u
  const int64_t* offsets = nullptr;  // (num_segments + 1) int64, device; NULL: one segment
  int64_t num_segments = 1;
  int64_t* key_offsets = nullptr;    // out (num_segments + 1) int64, device, instead of num_keys
};
void dedup(device::Device& device, device::Stream stream, const Dedup& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_DEDUP_H_
