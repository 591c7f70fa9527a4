// Arithmetic that both sides do alike, to the bit. Multiplications are fused with
// additions only by `multiply_add`: -fmad=false for nvcc, -ffp-contract=off elsewhere.
#ifndef SPARRING_HKV_DEVICE_KERNELS_SCALARS_H_
#define SPARRING_HKV_DEVICE_KERNELS_SCALARS_H_

#include <cstdint>
#include <type_traits>
#include <cstring>

#if !defined(__CUDACC__)
#include <cmath>
#endif

#include "device/macros.h"

namespace sparring::device_kernels {

template <class To, class From>
SPARRING_HOST_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

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

// a * b + c, rounded once.
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

// The bijection whose top bits are a key's partition: part of the format, as in
// core's native/kernels/hash.h.
SPARRING_HOST_DEVICE uint64_t mix64(uint64_t bits) {
  bits ^= bits >> 33;
  bits *= 0xff51afd7ed558ccdu;
  bits ^= bits >> 33;
  bits *= 0xc4ceb9fe1a85ec53u;
  bits ^= bits >> 33;
  return bits;
}
inline constexpr int kNumPartitions = 4096;
SPARRING_HOST_DEVICE uint32_t partition_of(int64_t key) {
  return static_cast<uint32_t>(mix64(static_cast<uint64_t>(key)) >> 52);
}

// Four 32-bit words.
struct PhiloxBlock {
  uint32_t words[4];
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011), as core's native/kernels/philox.h.
SPARRING_HOST_DEVICE PhiloxBlock philox4x32_10(PhiloxBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.words[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.words[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.words[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.words[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// The block of a key: its halves, then two numbers.
SPARRING_HOST_DEVICE PhiloxBlock philox_of(int64_t key, uint32_t third, uint32_t fourth,
                                           uint64_t philox_key) {
  const auto bits = static_cast<uint64_t>(key);
  return philox4x32_10(
      {{static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), third, fourth}},
      philox_key);
}

// Whether it is infinite or no number: all bits of the exponent are set.
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
