// The layout of the bytes of a row.
//
//   byte  0                                  state_begin             row_bytes
//         ┌─────────────────────┬ ─ ─ ─ ─ ─ ─┬───────────────────────┐
//         │ embedding (dim)     │ 0-3 bytes  │ state (state_width)   │
//         └─────────────────────┴ ─ ─ ─ ─ ─ ─┴───────────────────────┘
//
// The embedding has the row's type. State, gradients and computations use float64 for
// float64 rows, and float32 for all others. Padding aligns the state to a multiple of its
// element size within the row. The storage determines where a row begins in memory, so
// pointers into it may be unaligned.
//
// In int8 rows, embedding and state have 8 bits per element, and there is no padding; bytes.h
// describes them.
#ifndef SPARRING_KERNELS_ROW_LAYOUT_H_
#define SPARRING_KERNELS_ROW_LAYOUT_H_

#include <cstdint>

namespace sparring::kernels {

enum class RowType : int32_t { float32, float64, float16, bfloat16, int8 };

struct RowLayout {
  RowType type;
  int64_t dim;          // elements of the embedding, at least 1
  int64_t state_width;  // elements of state, of the computing type
  int64_t state_begin;  // bytes; row_bytes if there is no state
  int64_t row_bytes;
};

// Bytes of one element of the embedding.
constexpr int64_t element_bytes(RowType type) {
  switch (type) {
    case RowType::float32:
      return 4;
    case RowType::float64:
      return 8;
    case RowType::float16:
    case RowType::bfloat16:
      return 2;
    case RowType::int8:
      return 1;
  }
  return 0;
}

// Bytes of the scale of an int8 embedding, and of each vector of its state.
constexpr int64_t kScaleBytes = 2;

// Bytes of the embedding, from the beginning of the row.
constexpr int64_t embedding_bytes(RowType type, int64_t dim) {
  return dim * element_bytes(type) + (type == RowType::int8 ? kScaleBytes : 0);
}

// Bytes of one element of gradients and of decoded state.
constexpr int64_t computing_bytes(RowType type) { return type == RowType::float64 ? 8 : 4; }

constexpr RowLayout make_row_layout(RowType type, int64_t dim, int64_t state_width) {
  if (type == RowType::int8) {
    const int64_t begin = embedding_bytes(type, dim);
    const int64_t state_bytes = state_width / dim * (dim + kScaleBytes) + state_width % dim * 2;
    return {type, dim, state_width, begin, begin + state_bytes};
  }
  const int64_t unit = state_width == 0 ? 1 : computing_bytes(type);
  const int64_t begin = (embedding_bytes(type, dim) + unit - 1) / unit * unit;
  return {type, dim, state_width, begin, begin + state_width * computing_bytes(type)};
}

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_ROW_LAYOUT_H_
