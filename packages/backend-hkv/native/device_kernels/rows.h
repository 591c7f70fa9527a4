// Gathers and pools rows on a device, with the same sums in the same order as core's
// kernels `gather`, `pool` and `pool_weight_gradient`.
//
// A part of a warp processes one row of the result; its lanes process adjacent columns,
// with accesses of 16 bytes if everything is aligned. Therefore each row is read once, in
// whole cache lines, and results are written once. Does not wait for the device.
#ifndef SPARRING_HKV_DEVICE_KERNELS_ROWS_H_
#define SPARRING_HKV_DEVICE_KERNELS_ROWS_H_

#include <cstdint>

#include "device/memory.h"
#include "device_kernels/initialize.h"
#include "device_kernels/row_layout.h"

namespace sparring::device_kernels {

// out[i] = rows[inverse[i]], as bytes.
struct Gather {
  const void* rows;        // (u, row_bytes) bytes, device
  const int64_t* inverse;  // (n) int64, each in [0, u), device
  void* out;               // out (n, row_bytes) bytes, device; must not overlap the inputs
  int64_t count;           // n
  int64_t row_bytes;
};
void gather(device::Device& device, device::Stream stream, const Gather& arguments);

template <class T>
struct Pool {
  const T* rows;           // (u, dim) T, device
  const int64_t* inverse;  // (n) int64, each in [0, u), device
  const int64_t* offsets;  // (b + 1) int64, non-decreasing, from 0 to n, device
  const T* weights;        // (n) T, device, or NULL: all one
  T* out;                  // out (b, dim) T, device; must not overlap the inputs
  int64_t num_bags;        // b
  int64_t dim;
  bool is_mean;            // divide by the number of ids in the bag
};
template <class T>
void pool(device::Device& device, device::Stream stream, const Pool<T>& arguments);

// The same for rows that a storage keeps. Initial values of ids without a row are computed
// on the fly.
struct ShownPool {
  const void* const* rows;  // (n) pointers to embeddings of `type`, or NULL; device
  const int64_t* ids;       // (n) int64, device: to compute initial values
  const int64_t* offsets;   // (b + 1), device
  const void* weights;      // (n) of the computing type, device, or NULL
  void* out;                // out (b, dim) of the computing type, device
  int64_t num_bags;
  int64_t dim;
  RowType type;
  InitialValues initial;
  bool is_mean;
};
void pool_shown(device::Device& device, device::Stream stream, const ShownPool& arguments);

// out[i] = the dot product of the gradient of i's bag and i's row; the mean divides it by
// the number of ids in the bag.
template <class T>
struct PoolWeightGradient {
  const T* gradient;       // (b, dim) T, device
  const T* rows;           // (u, dim) T, device
  const int64_t* inverse;  // (n) int64, device
  const int64_t* offsets;  // (b + 1) int64, device
  T* out;                  // out (n) T, device
  int64_t count;           // n
  int64_t num_bags;        // b
  int64_t dim;
  bool is_mean;
};
template <class T>
void pool_weight_gradient(device::Device& device, device::Stream stream,
                          const PoolWeightGradient<T>& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_ROWS_H_
