// Sums rows by target on a device: `segment_sum`, and the gradient of `pool`.
//
// Occurrences are sorted stably by target, so that those of a target are adjacent and in
// the order of the batch. A part of a warp sums the occurrences of one target. The sum of a
// target with more than kLongSegment occurrences is divided: the sorted order is cut into
// pieces of kPiece, and a part of a warp sums the occurrences of one piece.
//
//   pieces    |     0     |     1     |     2     |     3     |
//   sorted    a a b b b b b b b b b b b b b b b b b b b c d d e       b is long
//   parts         b         b           b           b
//
// Then a block sums the parts of a target: each of its eight warps sums a range of them (parts
// P w / 8 to P (w + 1) / 8 of P), and then the sums of the warps are added in order. Therefore the
// order of every sum depends only on the call, and results are reproducible. They are equal bit for
// bit to core's for targets with at most kLongSegment occurrences.
//
// Memory traffic for n occurrences of rows of r bytes: a radix sort of 8 n bytes by the
// bits of the number of targets; n r read in lines, at random; u r written; at most
// n r / 256 of parts written and read. Eight loads of rows are in flight at a time.
#ifndef SPARRING_HKV_DEVICE_KERNELS_SUMS_H_
#define SPARRING_HKV_DEVICE_KERNELS_SUMS_H_

#include <cstdint>

#include "device/memory.h"

namespace sparring::device_kernels {

inline constexpr int64_t kLongSegment = 1024;
inline constexpr uint64_t kPiece = 512;  // less than kLongSegment

// out[t] = the sum over all occurrences i with targets[i] == t of the row of i's bag times
// i's weight (divided by the number of ids in the bag, if `is_mean`). Targets without an
// occurrence get zeros. Does not wait for the device.
// REQUIRES: every targets[i] in [0, num_rows); n, b and num_rows below 2^31.
// Throws OutOfDeviceMemory, DeviceError.
template <class T>
struct Scatter {
  const T* source;         // (b, dim) T, device
  const int64_t* targets;  // (n) int64, device
  const int64_t* offsets;  // (b + 1) int64, device, or NULL: bag i is occurrence i
  const T* weights;        // (n) T, device, or NULL: all one
  T* out;                  // out (num_rows, dim) T, device; must not overlap the inputs
  int64_t count;           // n
  int64_t num_bags;        // b
  int64_t num_rows;
  int64_t dim;
  bool is_mean;
  uint64_t* num_bad = nullptr;  // (1) uint64, device: counts sums that are not finite; NULL: not checked
};
template <class T>
void scatter(device::Device& device, device::Stream stream, const Scatter<T>& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_SUMS_H_
