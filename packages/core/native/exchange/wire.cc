#include "exchange/wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/halves.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::exchange {
namespace {

using kernels::grain_for;
using kernels::NarrowRows;
using kernels::parallel_for;
using kernels::RowType;

constexpr float kLargestFloat16 = 65504.0f;
// The largest float32 that rounds to a finite bfloat16.
constexpr float kLargestToBfloat16 = 0x1.fep127f;
constexpr float kSmallestMagnitude = 0x1p-119f;

// Adding it rounds to an integer, ties to even, in the low bits. For magnitudes below
// 2^22.
constexpr float kRounding = 0x1.8p23f;

RowType row_type(WireType type) {
  return type == WireType::float16 ? RowType::float16 : RowType::bfloat16;
}

// 16 bits without overflow of finite numbers.
void encode_halves(WireType type, const float* rows, int64_t count, int64_t dim, void* wire) {
  const float largest = type == WireType::float16 ? kLargestFloat16 : kLargestToBfloat16;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> held(static_cast<size_t>(count * dim));
  for (int64_t i = 0; i < count * dim; ++i) {
    const float magnitude = std::fabs(rows[i]);
    const bool is_beyond = magnitude > largest && magnitude < kInfinity;
    held[static_cast<size_t>(i)] = is_beyond ? std::copysign(largest, rows[i]) : rows[i];
  }
  kernels::encode(nullptr, held.data(), {}, {row_type(type), wire, dim * 2, count, dim});
}

void encode_int8(const float* row, int64_t dim, float magnitude, float* scale, int8_t* to) {
  if (!(magnitude < std::numeric_limits<float>::infinity())) {
    *scale = std::numeric_limits<float>::quiet_NaN();
    std::memset(to, 0, static_cast<size_t>(dim));
    return;
  }
  if (magnitude < kSmallestMagnitude) {
    *scale = 0;
    std::memset(to, 0, static_cast<size_t>(dim));
    return;
  }
  *scale = magnitude / 127.0f;
  const float inverse = 127.0f / magnitude;
  for (int64_t i = 0; i < dim; ++i) {
    const float rounded = row[i] * inverse + kRounding;
    int32_t bits;
    std::memcpy(&bits, &rounded, sizeof(bits));
    to[i] = static_cast<int8_t>(bits);
  }
}

}  // namespace

void encode(const SparringExecutor* executor, WireType type, const float* rows, int64_t count,
            int64_t dim, void* wire) {
  if (type != WireType::int8) {
    parallel_for(executor, count, grain_for(6 * dim), [&](int64_t begin, int64_t end) {
      // In blocks, so that the clamped numbers stay in the cache.
      const int64_t block = std::max<int64_t>(1, 4096 / dim);
      for (int64_t at = begin; at < end; at += block) {
        encode_halves(type, rows + at * dim, std::min(block, end - at), dim,
                      static_cast<char*>(wire) + at * dim * 2);
      }
    });
    return;
  }
  auto* const scales = static_cast<float*>(wire);
  auto* const numbers = reinterpret_cast<int8_t*>(scales + count);
  const auto& loops = kernels::row_kernels<float>();
  parallel_for(executor, count, grain_for(5 * dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const from = rows + row * dim;
      encode_int8(from, dim, loops.largest_magnitude(from, dim), scales + row,
                  numbers + row * dim);
    }
  });
}

void decode(const SparringExecutor* executor, WireType type, const void* wire, int64_t count,
            int64_t dim, float* rows) {
  if (type != WireType::int8) {
    kernels::decode(executor, {row_type(type), const_cast<void*>(wire), dim * 2, count, dim},
                    rows);
    return;
  }
  const auto* const scales = static_cast<const float*>(wire);
  const auto* const numbers = reinterpret_cast<const int8_t*>(scales + count);
  parallel_for(executor, count, grain_for(5 * dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float scale = scales[row];
      for (int64_t i = row * dim; i < (row + 1) * dim; ++i) {
        rows[i] = static_cast<float>(numbers[i]) * scale;
      }
    }
  });
}

}  // namespace sparring::exchange
