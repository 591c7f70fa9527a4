// Compiled with -ffp-contract=off, so that a multiplication and an addition are rounded separately.
#include "rows/initial_values.h"

#include <algorithm>
#include <cmath>

#include "format/manifest.h"
#include "rows/halves.h"
#include "sparring_packed.h"

namespace sparring::packed {
namespace {

float to_float(float value) { return value; }
float to_float(Float16 value) { return float_of_float16(value.bits); }
float to_float(Bfloat16 value) { return float_of_bfloat16(value.bits); }

template <class Body>
auto with_dtype(int32_t dtype, const Body& body) {
  // Values of int8 tables are rounded afterwards.
  if (dtype == SPARRING_PACKED_FLOAT32 || dtype == SPARRING_PACKED_INT8) return body(float{});
  if (dtype == SPARRING_PACKED_FLOAT16) return body(Float16{});
  return body(Bfloat16{});
}

}  // namespace

TableInitializer initializer_of(const TableEntry& table) {
  Initializer given{InitialKind::constant, table.first, table.second,
                    philox_key_for(table.seed, fnv1a(table.name))};
  initial_kind_named(table.initializer, &given.kind);
  return {with_dtype(table.trained_dtype, [&]<class T>(T) { return initial_values<T>(given); }),
          table.trained_dtype};
}

void initial_embedding(const TableInitializer& initializer, int64_t id, int64_t dim, float* out) {
  if (initializer.dtype == SPARRING_PACKED_INT8) {
    initial_embedding({initializer.values, SPARRING_PACKED_FLOAT32}, id, dim, out);
    float largest = 0;
    for (int64_t i = 0; i < dim; ++i) largest = std::max(largest, std::fabs(out[i]));
    const float scale = int8_scale(largest);
    const float most = kMostInt8Code * scale;
    for (int64_t i = 0; i < dim; ++i) {
      const int32_t code = int8_code(std::clamp(out[i], -most, most), scale);
      out[i] = static_cast<float>(code) * scale;
    }
    return;
  }
  with_dtype(initializer.dtype, [&]<class T>(T) {
    for (int64_t column = 0; column < dim; column += 4) {
      const auto columns =
          initial_columns<T>(initializer.values, id, static_cast<uint32_t>(column / 4));
      std::transform(columns.values, columns.values + std::min<int64_t>(4, dim - column),
                     out + column, [](T value) { return to_float(value); });
    }
  });
}

}  // namespace sparring::packed
