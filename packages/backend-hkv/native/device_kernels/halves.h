// 16-bit numbers, one at a time, on bits: the rounding is part of the format and
// defined by core's native/kernels/halves.h.
#ifndef SPARRING_HKV_DEVICE_KERNELS_HALVES_H_
#define SPARRING_HKV_DEVICE_KERNELS_HALVES_H_

#include "device_kernels/scalars.h"

namespace sparring::device_kernels {

struct Bfloat16 {
  uint16_t bits;
  static constexpr int kMantissa = 7;
  static constexpr int kBias = 127;
  static constexpr uint32_t kInfinity = 0x7f80;

  SPARRING_HOST_DEVICE static float decode(uint32_t half) { return bits_as<float>(half << 16); }
  // Of magnitudes; of NaNs anything.
  SPARRING_HOST_DEVICE static uint32_t nearest(uint32_t magnitude) {
    return (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
  }
  SPARRING_HOST_DEVICE static uint32_t stochastic(uint32_t magnitude, uint32_t random) {
    return (magnitude + random) >> 16;
  }
  SPARRING_HOST_DEVICE static uint32_t nan(uint32_t magnitude) { return magnitude >> 16 | 0x7fc0; }
};

struct Float16 {
  uint16_t bits;
  static constexpr int kMantissa = 10;
  static constexpr int kBias = 15;
  static constexpr uint32_t kInfinity = 0x7c00;
  // What exponents differ by, and 2^-14, the smallest normal number.
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
      // The last place of 0.5 is that of a subnormal float16.
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
  const uint32_t result = magnitude > 0x7f800000 ? Half::nan(magnitude) : rounded;
  return Half{static_cast<uint16_t>(result | (original >> 16 & 0x8000))};
}

// To nearest, even where two are; beyond the range: infinity.
template <class Half>
SPARRING_HOST_DEVICE Half nearest_half(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  return with_sign_or_nan<Half>(bits, Half::nearest(bits & 0x7fffffff));
}

// Up or down by 16 random bits; beyond the range: the largest finite number.
template <class Half>
SPARRING_HOST_DEVICE Half stochastic_half(float value, uint32_t random) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t rounded = Half::kInfinity;
  if (magnitude < 0x7f800000) {
    rounded = Half::stochastic(magnitude, random);
    if (rounded > Half::kInfinity - 1) rounded = Half::kInfinity - 1;
  }
  return with_sign_or_nan<Half>(bits, rounded);
}

// From double, rounded once.
template <class Half>
SPARRING_HOST_DEVICE Half nearest_half_of_double(double value) {
  constexpr int dropped = 52 - Half::kMantissa;
  constexpr uint64_t below_normal = 1023 - Half::kBias;  // an exponent
  const uint64_t bits = bits_as<uint64_t>(value);
  const auto sign = static_cast<uint32_t>(bits >> 48 & 0x8000);
  const uint64_t magnitude = bits & 0x7fffffffffffffff;
  const uint64_t exponent = magnitude >> 52;
  uint64_t result = 0;
  if (magnitude > 0x7ff0000000000000) {
    result = Half::kInfinity | uint64_t{1} << (Half::kMantissa - 1);
  } else if (exponent > below_normal) {
    const uint64_t rebiased = magnitude - (below_normal << 52);
    const uint64_t half = (uint64_t{1} << (dropped - 1)) - 1;
    result = (rebiased + half + (rebiased >> dropped & 1)) >> dropped;
    if (result > Half::kInfinity) result = Half::kInfinity;
  } else {
    const uint64_t shift = dropped + below_normal + 1 - exponent;
    const uint64_t significand = (magnitude & 0x000fffffffffffff) | 0x0010000000000000;
    if (shift <= 53) {
      const uint64_t half = (uint64_t{1} << (shift - 1)) - 1;
      result = (significand + half + (significand >> shift & 1)) >> shift;
    }
  }
  return Half{static_cast<uint16_t>(result | sign)};
}

// For a finite number; not via float32, where a bfloat16 may be subnormal.
template <class Half>
SPARRING_HOST_DEVICE double double_of_half(uint16_t bits) {
  constexpr uint64_t rebias = uint64_t{1023 - Half::kBias} << 52;
  const uint64_t magnitude = bits & 0x7fff;
  const bool is_subnormal = magnitude >> Half::kMantissa == 0;
  // A subnormal one as a normal one of the least exponent, which is then taken off.
  const uint64_t raised = is_subnormal ? magnitude | uint64_t{1} << Half::kMantissa : magnitude;
  double value = bits_as<double>((raised << (52 - Half::kMantissa)) + rebias);
  if (is_subnormal) value -= bits_as<double>((uint64_t{1} << 52) + rebias);
  return (bits & 0x8000) != 0 ? -value : value;
}

// The 16 bits that column `column` of a row is rounded with.
SPARRING_HOST_DEVICE uint32_t rounding_bits(const PhiloxBlock& block, unsigned column) {
  return block.words[column % 8 / 2] >> (column % 2 * 16) & 0xffff;
}

// What a value of type T is computed with, and the way there and back.
template <class T>
struct Stored {
  using Computing = T;
  SPARRING_HOST_DEVICE static T load(T value) { return value; }
  SPARRING_HOST_DEVICE static T of_double(double value) { return static_cast<T>(value); }
};
template <>
struct Stored<Float16> {
  using Computing = float;
  SPARRING_HOST_DEVICE static float load(Float16 value) { return Float16::decode(value.bits); }
  SPARRING_HOST_DEVICE static Float16 of_double(double value) {
    return nearest_half_of_double<Float16>(value);
  }
};
template <>
struct Stored<Bfloat16> {
  using Computing = float;
  SPARRING_HOST_DEVICE static float load(Bfloat16 value) { return Bfloat16::decode(value.bits); }
  SPARRING_HOST_DEVICE static Bfloat16 of_double(double value) {
    return nearest_half_of_double<Bfloat16>(value);
  }
};

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_HALVES_H_
