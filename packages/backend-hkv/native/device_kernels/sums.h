// Adds rows up by target, on a device: `segment_sum`, and the gradient of `pool`.
//
// Occurrences are sorted by target, stably, so that those of a target are neighbors
// in the order of the batch, and a part of a warp adds up the occurrences of one.
// A target with more than kLongSegment of them is shared by many: the sorted order is cut
// into pieces of kPiece, and a part of a warp adds up the occurrences of one piece.
//
//   pieces    |     0     |     1     |     2     |     3     |
//   sorted    a a b b b b b b b b b b b b b b b b b b b c d d e       b is long
//   parts         b         b           b           b
//
// Then a block adds up the parts of a target: its eight warps each a stretch of them (part
// P w / 8 up to P (w + 1) / 8 of P), and then the warps' sums in order. So the order of every
// sum is a function of the call alone: results are the same each time. They are bit for
// bit core's for targets with up to kLongSegment occurrences.
//
// Memory traffic for n occurrences of rows of r bytes: a radix sort of 8 n bytes by
// the bits of the number of targets; n r read in lines, at random; u r written; up to
// n r / 256 of parts written and read. Eight rows are on their way at a time.
#ifndef SPARRING_HKV_DEVICE_KERNELS_SUMS_H_
#define SPARRING_HKV_DEVICE_KERNELS_SUMS_H_

#include <cstdint>

#include "device/memory.h"

namespace sparring::device_kernels {

inline constexpr int64_t kLongSegment = 1024;
inline constexpr uint64_t kPiece = 512;  // less than kLongSegment

// out[t] = the sum over all occurrences i with targets[i] == t, of the row of i's bag
// times i's weight (divided by the number of ids in the bag, if `is_mean`). Targets
// without an occurrence get zeros. Does not wait for the device.
// REQUIRES: every targets[i] in [0, num_rows); n, b and num_rows below 2^31.
// Throws OutOfDeviceMemory, DeviceError.
template <class T>
struct Scatter {
  const T* source;         // (b, dim) T, device
  const int64_t* targets;  // (n) int64, device
  const int64_t* offsets;  // (b + 1) int64, device, or NULL: bag i is occurrence i
  const T* weights;        // (n) T, device, or NULL: all one
  T* out;                  // out (num_rows, dim) T, device; overlaps nothing
  int64_t count;           // n
  int64_t num_bags;        // b
  int64_t num_rows;
  int64_t dim;
  bool is_mean;
  uint64_t* num_bad = nullptr;  // (1) uint64, device: grows where a sum is not finite; NULL: not asked
};
template <class T>
void scatter(device::Device& device, device::Stream stream, const Scatter<T>& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_SUMS_H_
