// Arithmetic with identical bits on host and device. Multiplications and additions are fused
// only by `multiply_add`: -fmad=false for nvcc, -ffp-contract=off elsewhere.
#ifndef SPARRING_HKV_DEVICE_KERNELS_SCALARS_H_
#define SPARRING_HKV_DEVICE_KERNELS_SCALARS_H_

#include <cstdint>
#include <type_traits>

#if !defined(__CUDACC__)
#include <cmath>
#endif

#include "device/macros.h"
#include "sparring/initial_value.h"

namespace sparring::device_kernels {

SPARRING_DEVICE float square_root(float x) {
#if defined(__CUDACC__)
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}
SPARRING_DEVICE double square_root(double x) {
#if defined(__CUDACC__)
  return __dsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

// a * b + c with one rounding.
SPARRING_DEVICE float multiply_add(float a, float b, float c) {
#if defined(__CUDACC__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}
SPARRING_DEVICE double multiply_add(double a, double b, double c) {
#if defined(__CUDACC__)
  return __fma_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// Whether the value is infinite or NaN: all bits of the exponent are set.
template <class T>
SPARRING_DEVICE bool is_bad(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return (bits_as<uint32_t>(value) & 0x7f800000u) == 0x7f800000u;
  } else {
    return (bits_as<uint64_t>(value) & 0x7ff0000000000000u) == 0x7ff0000000000000u;
  }
}

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_SCALARS_H_
