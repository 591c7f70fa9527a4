// The distinct ids of a batch, and where each id went, on a device.
//
//   slots   | 7 | . | 0 | . | 3 | ...     4 bytes each, twice as many as ids or more
//
// A slot holds the position of an id in the batch, and stands for that id; `.` is
// empty. No id is reserved: the id itself is looked up in the batch. Each id finds
// or takes a slot by linear probing, and lowers the position in it, so that in the
// end each slot holds where its id first occurred. Counting first occurrences over
// the batch then numbers the keys, whatever the order of threads was.
//
// Memory traffic for n ids: 8 n read; n slots of a table of 8 n to 16 n bytes read or
// taken by one atomic each; 8 n read again at the places found; 4 n flags written and
// summed; 8 u keys and 8 n inverse written.
#ifndef SPARRING_HKV_DEVICE_KERNELS_DEDUP_H_
#define SPARRING_HKV_DEVICE_KERNELS_DEDUP_H_

#include <cstdint>

#include "device/memory.h"

namespace sparring::device_kernels {

// The most ids in one call.
inline constexpr int64_t kMostIds = 0x7fffffff;

// Ids of several segments, one behind the other, are told apart by their segment too: then keys of a
// segment are neighbors, in the order of segments.
//
// Keys come in the order in which ids first occur; ids[i] == keys[inverse[i]]. The
// result is the same for any order of threads. Does not wait for the device.
// Throws OutOfDeviceMemory, DeviceError.
struct Dedup {
  const int64_t* ids;  // (n) int64, device
  int64_t count;       // n, at most kMostIds
  int64_t* keys;       // out (n) int64, device; the first u are written
  int64_t* inverse;    // out (n) int64, device
  int64_t* num_keys;   // out (1) int64, device: u
  const int64_t* offsets = nullptr;  // (num_segments + 1) int64, device; NULL: one segment
  int64_t num_segments = 1;
  int64_t* key_offsets = nullptr;    // out (num_segments + 1) int64, device, in place of num_keys
};
void dedup(device::Device& device, device::Stream stream, const Dedup& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_DEDUP_H_
