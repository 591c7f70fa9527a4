// The layout of a row as in core's native/kernels/row_layout.h: the embedding, a gap of up
// to 3 bytes, the state. On a device, rows start at multiples of the size of their widest
// element.
#ifndef SPARRING_HKV_DEVICE_KERNELS_ROW_LAYOUT_H_
#define SPARRING_HKV_DEVICE_KERNELS_ROW_LAYOUT_H_

#include <cstdint>
#include <stdexcept>
#include <string>

#include "device/macros.h"
#include "device_kernels/halves.h"

namespace sparring::device_kernels {

enum class RowType : int32_t { float32, float64, float16, bfloat16 };

// Throws std::invalid_argument for an unknown name.
inline RowType row_type_named(const std::string& name) {
  if (name == "float32") return RowType::float32;
  if (name == "float64") return RowType::float64;
  if (name == "float16") return RowType::float16;
  if (name == "bfloat16") return RowType::bfloat16;
  throw std::invalid_argument("dtype '" + name +
                              "' is not a dtype of tables; choose float32, float64, float16 or bfloat16");
}

constexpr int64_t element_bytes(RowType type) {
  return type == RowType::float64 ? 8 : type == RowType::float32 ? 4 : 2;
}
// Size of elements of state, gradients and computed values.
constexpr int64_t computing_bytes(RowType type) { return type == RowType::float64 ? 8 : 4; }
constexpr bool is_half(RowType type) {
  return type == RowType::float16 || type == RowType::bfloat16;
}

struct RowLayout {
  RowType type;
  int64_t dim;          // elements of the embedding, at least 1
  int64_t state_width;  // elements of state, of the computing type
  int64_t state_begin;  // in bytes; row_bytes if there is no state
  int64_t row_bytes;
};

constexpr RowLayout make_row_layout(RowType type, int64_t dim, int64_t state_width) {
  const int64_t unit = state_width == 0 ? 1 : computing_bytes(type);
  const int64_t begin = (dim * element_bytes(type) + unit - 1) / unit * unit;
  return {type, dim, state_width, begin, begin + state_width * computing_bytes(type)};
}

// Calls body(T{}) with the type of the embedding.
template <class Body>
decltype(auto) with_row_type(RowType type, const Body& body) {
  switch (type) {
    case RowType::float64:
      return body(double{});
    case RowType::float16:
      return body(Float16{});
    case RowType::bfloat16:
      return body(Bfloat16{});
    case RowType::float32:
      break;
  }
  return body(float{});
}

// Contiguous rows, or rows wherever a storage keeps them.
struct RowPlaces {
  void* const* pointers;  // (count) device, or NULL: use `first` and `stride`
  char* first;            // device
  int64_t stride;         // bytes

  SPARRING_DEVICE char* at(uint64_t i) const {
    return pointers != nullptr ? static_cast<char*>(pointers[i])
                               : first + static_cast<int64_t>(i) * stride;
  }
};

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_ROW_LAYOUT_H_
