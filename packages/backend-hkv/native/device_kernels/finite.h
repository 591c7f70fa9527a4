// Detects NaN and infinity on a device.
#ifndef SPARRING_HKV_DEVICE_KERNELS_FINITE_H_
#define SPARRING_HKV_DEVICE_KERNELS_FINITE_H_

#include <cstdint>

#include "device/memory.h"

namespace sparring::device_kernels {

// finite[i] = 1 if no element of row i is NaN or infinite. Does not wait.
template <class T>
struct FiniteRows {
  const T* values;  // (n, dim) T, device
  int64_t count;    // n
  int64_t dim;
  uint8_t* finite;  // out (n) uint8, device
};
template <class T>
void finite_rows(device::Device& device, device::Stream stream, const FiniteRows<T>& arguments);

// *num_bad = number of the `count` values that are NaN or infinite; (1) uint64, device.
template <class T>
void count_non_finite(device::Device& device, device::Stream stream, const T* values, int64_t count,
                      uint64_t* num_bad);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_FINITE_H_
