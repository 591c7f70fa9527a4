// Dtypes of stored elements, and the size of a row.
#ifndef SPARRING_PACKED_FORMAT_DTYPE_H_
#define SPARRING_PACKED_FORMAT_DTYPE_H_

#include <cstdint>
#include <string_view>

#include "sparring_packed.h"

namespace sparring::packed {

inline constexpr std::string_view kDtypeNames[] = {"fp32", "fp16", "bf16", "int8", "int4"};
inline constexpr int32_t kNumDtypes = 5;

inline constexpr bool is_dtype(int64_t dtype) { return dtype >= 0 && dtype < kNumDtypes; }
inline constexpr bool is_quantized(int32_t dtype) { return dtype >= SPARRING_PACKED_INT8; }

// A float16 scale and a float16 bias, after the elements of a quantized row.
inline constexpr int64_t kScaleBytes = 4;

inline constexpr int64_t row_bytes_of(int32_t dtype, int64_t dim) {
  switch (dtype) {
    case SPARRING_PACKED_FLOAT32:
      return 4 * dim;
    case SPARRING_PACKED_INT8:
      return dim + kScaleBytes;
    case SPARRING_PACKED_INT4:
      return (dim + 1) / 2 + kScaleBytes;
    default:
      return 2 * dim;
  }
}

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_DTYPE_H_
