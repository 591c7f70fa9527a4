// Compiled with -ffp-contract=off, so that stored rows do not depend on the CPU that wrote them.
#include "rows/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/dtype.h"
#include "rows/halves.h"

namespace sparring::packed {
namespace {

constexpr float kMostHalf = 65'504.0f;

struct Range {
  uint16_t scale_bits;
  uint16_t bias_bits;
  float scale;
  float bias;
};

// The next greater float16 of a finite one.
uint16_t half_above(uint16_t bits) {
  if (bits == 0x8000) return 1;
  return static_cast<uint16_t>((bits & 0x8000) != 0 ? bits - 1 : bits + 1);
}

uint16_t half_below(uint16_t bits) {
  if (bits == 0) return 0x8001;
  return static_cast<uint16_t>((bits & 0x8000) != 0 ? bits + 1 : bits - 1);
}

// Stored scale and bias for elements from `least` to `largest`.
Range range_of(float least, float largest, float most) {
  Range range;
  range.bias_bits = float16_of_float(least);
  if (float_of_float16(range.bias_bits) > least) range.bias_bits = half_below(range.bias_bits);
  range.bias = float_of_float16(range.bias_bits);
  range.scale_bits = float16_of_float((largest - range.bias) / most);
  if (__builtin_fmaf(most, float_of_float16(range.scale_bits), range.bias) < largest) {
    range.scale_bits = half_above(range.scale_bits);
  }
  range.scale = float_of_float16(range.scale_bits);
  return range;
}

// (value - bias) / scale, rounded to the nearest integer from 0 to `most`.
inline float level_of(float value, float bias, float inverse, float most) {
  const float level = (value - bias) * inverse;
  const float held = level < 0.0f ? 0.0f : level > most ? most : level;
  // 2^23 + x has no fraction: it is rounded to nearest, ties to even.
  return (held + 8'388'608.0f) - 8'388'608.0f;
}

inline float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

constexpr int kLanes = 16;

// Uses sixteen sums, which vectors of any length can share.
float square_error(const float* embedding, int64_t dim, const Range& range, float most) {
  const float inverse = inverse_of(range.scale);
  float sums[kLanes] = {};
  int64_t column = 0;
  for (; column + kLanes <= dim; column += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = embedding[column + lane];
      const float level = level_of(value, range.bias, inverse, most);
      const float error = level * range.scale + range.bias - value;
      sums[lane] += error * error;
    }
  }
  for (; column < dim; ++column) {
    const float value = embedding[column];
    const float error = level_of(value, range.bias, inverse, most) * range.scale + range.bias - value;
    sums[0] += error * error;
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

constexpr int kSteps = 200;
constexpr float kNarrowest = 0.16f;  // relative to the range, from the paper

Range searched_range(const float* embedding, int64_t dim, float least, float largest, float most) {
  Range best = range_of(least, largest, most);
  float best_error = square_error(embedding, dim, best, most);
  const float whole = largest - least;
  const float step = whole / kSteps;
  float low = least;
  float high = largest;
  while (step > 0.0f && low + step < high - step && (high - low) > kNarrowest * whole) {
    const Range raised = range_of(low + step, high, most);
    const Range lowered = range_of(low, high - step, most);
    const float raised_error = square_error(embedding, dim, raised, most);
    const float lowered_error = square_error(embedding, dim, lowered, most);
    const bool is_raised = raised_error < lowered_error;
    (is_raised ? low : high) += is_raised ? step : -step;
    const float error = is_raised ? raised_error : lowered_error;
    if (error < best_error) {
      best_error = error;
      best = is_raised ? raised : lowered;
    }
  }
  return best;
}

bool quantize(int32_t dtype, const float* embedding, int64_t dim, uint8_t* row) {
  float least = embedding[0];
  float largest = embedding[0];
  bool is_finite = true;
  for (int64_t column = 0; column < dim; ++column) {
    const float value = embedding[column];
    is_finite = is_finite && std::fabs(value) <= kMostHalf;
    least = std::min(least, value);
    largest = std::max(largest, value);
  }
  if (!is_finite) return false;
  const bool is_int4 = dtype == SPARRING_PACKED_INT4;
  const float most = is_int4 ? 15.0f : 255.0f;
  const Range range = is_int4 ? searched_range(embedding, dim, least, largest, most)
                              : range_of(least, largest, most);
  if ((range.bias_bits & 0x7c00) == 0x7c00 || (range.scale_bits & 0x7c00) == 0x7c00) return false;
  const float inverse = inverse_of(range.scale);
  const int64_t scale_at = is_int4 ? (dim + 1) / 2 : dim;
  if (is_int4) std::memset(row, 0, static_cast<size_t>(scale_at));
  for (int64_t column = 0; column < dim; ++column) {
    const auto level =
        static_cast<unsigned>(level_of(embedding[column], range.bias, inverse, most));
    if (is_int4) {
      row[column / 2] = static_cast<uint8_t>(row[column / 2] | (level << (4 * (column & 1))));
    } else {
      row[column] = static_cast<uint8_t>(level);
    }
  }
  std::memcpy(row + scale_at, &range.scale_bits, 2);
  std::memcpy(row + scale_at + 2, &range.bias_bits, 2);
  return true;
}

}  // namespace

bool encode_row(int32_t dtype, const float* embedding, int64_t dim, uint8_t* row) {
  if (dtype == SPARRING_PACKED_FLOAT32) {
    std::memcpy(row, embedding, static_cast<size_t>(4 * dim));
    return true;
  }
  if (is_quantized(dtype)) return quantize(dtype, embedding, dim, row);
  const bool is_half = dtype == SPARRING_PACKED_FLOAT16;
  for (int64_t column = 0; column < dim; ++column) {
    const float value = embedding[column];
    const uint16_t bits = is_half ? float16_of_float(value) : bfloat16_of_float(value);
    if (is_half && (bits & 0x7fff) == 0x7c00 && std::isfinite(value)) return false;
    std::memcpy(row + 2 * column, &bits, 2);
  }
  return true;
}

bool convert_int8_row(const uint8_t* source, int64_t dim, uint8_t* row) {
  uint16_t scale;
  std::memcpy(&scale, source + dim, 2);
  if ((scale & 0x7c00) == 0x7c00) return false;
  for (int64_t i = 0; i < dim; ++i) row[i] = static_cast<uint8_t>(source[i] ^ 0x80u);
  const uint16_t bias = float16_of_float(-128.0f * float_of_float16(scale));
  std::memcpy(row + dim, &scale, 2);
  std::memcpy(row + dim + 2, &bias, 2);
  return true;
}

void decode_source(int32_t source_dtype, const void* embedding, int64_t dim, float* out) {
  if (source_dtype == SPARRING_PACKED_FLOAT32) {
    std::memcpy(out, embedding, static_cast<size_t>(4 * dim));
    return;
  }
  const auto* from = static_cast<const uint8_t*>(embedding);
  if (source_dtype == SPARRING_PACKED_INT8) {
    uint16_t bits;
    std::memcpy(&bits, from + dim, 2);
    const float scale = float_of_float16(bits);
    for (int64_t i = 0; i < dim; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(from[i])) * scale;
    }
    return;
  }
  for (int64_t column = 0; column < dim; ++column) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * column, 2);
    out[column] = source_dtype == SPARRING_PACKED_FLOAT16 ? float_of_float16(bits)
                                                          : float_of_bfloat16(bits);
  }
}

}  // namespace sparring::packed
