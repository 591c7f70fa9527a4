// 16-bit numbers, converted one at a time with bit operations. The rounding is part of
// the format and defined by core's native/kernels/halves.h.
#ifndef SPARRING_HKV_DEVICE_KERNELS_HALVES_H_
#define SPARRING_HKV_DEVICE_KERNELS_HALVES_H_

#include "device_kernels/scalars.h"

namespace sparring::device_kernels {

// The bits of a 16-bit type, and their computation from the bits of a float32.
template <class Half>
struct HalfBits;

template <>
struct HalfBits<Bfloat16> {
  SPARRING_HOST_DEVICE static float decode(uint32_t half) { return bits_as<float>(half << 16); }
  // For magnitudes; undefined for NaN.
  SPARRING_HOST_DEVICE static uint32_t nearest(uint32_t magnitude) {
    return (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
  }
  SPARRING_HOST_DEVICE static uint32_t stochastic(uint32_t magnitude, uint32_t random) {
    return (magnitude + random) >> 16;
  }
  SPARRING_HOST_DEVICE static uint32_t nan(uint32_t magnitude) { return magnitude >> 16 | 0x7fc0; }
};

template <>
struct HalfBits<Float16> {
  static constexpr uint32_t kInfinity = Float16::kInfinity;
  // The difference of exponents, and 2^-14, the smallest normal number.
  static constexpr uint32_t kRebias = 0x38000000;
  static constexpr uint32_t kSmallestNormal = 0x38800000;

  SPARRING_HOST_DEVICE static float decode(uint32_t half) {
    const uint32_t magnitude = half & 0x7fff;
    const uint32_t shifted = magnitude << 13;
    uint32_t bits = shifted + kRebias;
    if (magnitude >= kInfinity) {
      bits += kRebias;
    } else if (magnitude < 0x400) {
      bits = bits_as<uint32_t>(bits_as<float>(shifted + kSmallestNormal) -
                               bits_as<float>(kSmallestNormal));
    }
    return bits_as<float>(bits | (half & 0x8000) << 16);
  }
  SPARRING_HOST_DEVICE static uint32_t nearest(uint32_t magnitude) {
    if (magnitude < kSmallestNormal) {
      // The last bit of 0.5 has the value of the last bit of a subnormal float16.
      return bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<uint32_t>(0.5f);
    }
    const uint32_t rounded = (magnitude - kRebias + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return rounded > kInfinity ? kInfinity : rounded;
  }
  SPARRING_HOST_DEVICE static uint32_t stochastic(uint32_t magnitude, uint32_t random) {
    if (magnitude >= kSmallestNormal) return (magnitude - kRebias + (random >> 3)) >> 13;
    return (static_cast<uint32_t>(static_cast<int32_t>(bits_as<float>(magnitude) * 0x1p40f)) +
            random) >> 16;
  }
  SPARRING_HOST_DEVICE static uint32_t nan(uint32_t magnitude) {
    return (magnitude >> 13 & 0x1ff) | 0x7e00;
  }
};

template <class Half>
SPARRING_HOST_DEVICE Half with_sign_or_nan(uint32_t original, uint32_t rounded) {
  const uint32_t magnitude = original & 0x7fffffff;
  const uint32_t result = magnitude > 0x7f800000 ? HalfBits<Half>::nan(magnitude) : rounded;
  return Half{static_cast<uint16_t>(result | (original >> 16 & 0x8000))};
}

// Rounds to nearest, ties to even; beyond the range: infinity.
template <class Half>
SPARRING_HOST_DEVICE Half nearest_half(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  return with_sign_or_nan<Half>(bits, HalfBits<Half>::nearest(bits & 0x7fffffff));
}

// Rounds stochastically with 16 random bits; beyond the range: the largest finite number.
template <class Half>
SPARRING_HOST_DEVICE Half stochastic_half(float value, uint32_t random) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t rounded = Half::kInfinity;
  if (magnitude < 0x7f800000) {
    rounded = HalfBits<Half>::stochastic(magnitude, random);
    if (rounded > Half::kInfinity - 1) rounded = Half::kInfinity - 1;
  }
  return with_sign_or_nan<Half>(bits, rounded);
}

// The type in which values of type T are computed.
template <class T>
struct Stored {
  using Computing = T;
  SPARRING_HOST_DEVICE static T load(T value) { return value; }
};
template <>
struct Stored<Float16> {
  using Computing = float;
  SPARRING_HOST_DEVICE static float load(Float16 value) {
    return HalfBits<Float16>::decode(value.bits);
  }
};
template <>
struct Stored<Bfloat16> {
  using Computing = float;
  SPARRING_HOST_DEVICE static float load(Bfloat16 value) {
    return HalfBits<Bfloat16>::decode(value.bits);
  }
};

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_HALVES_H_
