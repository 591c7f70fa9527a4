#include "tables/row_formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace sparring::serve {

namespace {

// Rounds to the nearest float16, ties to even.
uint16_t to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
  if (rest >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // a subnormal float16, or zero: the unit of the last place is 2^-24
    const float scaled = std::bit_cast<float>(rest) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = rest + 0xfffu + (rest >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest < 0x400u) {
    const float value = static_cast<float>(rest) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
}

void encode_int8(const float* row, int64_t dim, char* out) {
  const auto [least, most] = std::minmax_element(row, row + dim);
  const uint16_t half_bias = to_half(*least);
  const float bias = from_half(half_bias);
  const uint16_t half_scale = to_half((*most - bias) / 255.0f);
  float divisor = from_half(half_scale);
  if (divisor == 0) divisor = 1;
  for (int64_t i = 0; i < dim; ++i) {
    const float step = std::nearbyint((row[i] - bias) / divisor);
    // NaN becomes 0.
    out[i] = static_cast<char>(static_cast<uint8_t>(step > 0 ? std::min(step, 255.0f) : 0.0f));
  }
  std::memcpy(out + dim, &half_scale, sizeof half_scale);
  std::memcpy(out + dim + 2, &half_bias, sizeof half_bias);
}

}  // namespace

void encode_rows(const float* rows, int64_t count, int64_t dim, int64_t dtype, char* out) {
  if (dtype == kFloat32) {
    if (count > 0) std::memcpy(out, rows, static_cast<size_t>(4 * count * dim));
    return;
  }
  if (dtype == kFloat16) {
    for (int64_t i = 0; i < count * dim; ++i) {
      const uint16_t half = to_half(rows[i]);
      std::memcpy(out + 2 * i, &half, sizeof half);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) encode_int8(rows + i * dim, dim, out + i * (dim + 4));
}

int64_t pack_found(const uint8_t* found, int64_t count, char* out) {
  int64_t sum = 0;
  for (int64_t at = 0; at < count; at += 8) {
    uint64_t eight;
    std::memcpy(&eight, found + at, sizeof eight);
    if (count - at < 8) eight &= (uint64_t{1} << (8 * (count - at))) - 1;
    // The multiplication moves the lowest bit of each byte to the highest byte.
    const uint64_t bits = (eight & 0x0101010101010101u) * 0x0102040810204080u >> 56;
    out[at / 8] = static_cast<char>(bits);
    sum += std::popcount(bits);
  }
  return sum;
}

}  // namespace sparring::serve
