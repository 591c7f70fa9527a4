// Rows for the exchange between ranks, with fewer bits than float32.
//
//   float16, bfloat16     ┌───────────────────────────────────┐
//                         │ n x dim numbers of 16 bits        │
//                         └───────────────────────────────────┘
//   int8                  ┌────────────────────┬──────────────┐
//                         │ n scales, float32  │ n x dim int8 │
//                         └────────────────────┴──────────────┘
//
// 16 bits: rounded to nearest, ties to even. A finite number beyond the largest finite
// number becomes that number, not infinity; infinity and NaN do not change.
//
// int8: m is the largest magnitude of a row, scale = m / 127, and x is sent as the integer q
// nearest to x * (127 / m), so |q| <= 127. The receiver computes q * scale.
//   - |x - q * scale| <= m / 253: half a scale, m / 254, and the rounding of four
//     float32 operations, which is below 1e-4 of a scale.
//   - A row with m < 2^-119, whose scale would be subnormal, is received as zeros.
//   - A row that contains NaN or infinity is received as a row of NaN.
#ifndef SPARRING_EXCHANGE_WIRE_H_
#define SPARRING_EXCHANGE_WIRE_H_

#include <cstdint>

#include "sparring/storage_abi.h"

namespace sparring::exchange {

enum class WireType : int32_t { bfloat16, float16, int8 };

constexpr int64_t wire_bytes(WireType type, int64_t count, int64_t dim) {
  return type == WireType::int8 ? count * (4 + dim) : count * dim * 2;
}

// REQUIRES: `wire` is aligned to 4 bytes and has at least wire_bytes bytes.
void encode(const SparringExecutor* executor, WireType type,
            const float* rows,  // (n, dim)
            int64_t count,      // n
            int64_t dim, void* wire);

void decode(const SparringExecutor* executor, WireType type, const void* wire, int64_t count,
            int64_t dim,
            float* rows);  // (n, dim), all written

}  // namespace sparring::exchange

#endif  // SPARRING_EXCHANGE_WIRE_H_
