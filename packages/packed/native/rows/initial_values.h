// Initial values of ids without a row, as defined by sparring/initial_value.h. Missing ids are few, so
// vectorization would save little here. The tests compare each bit with core's.
#ifndef SPARRING_PACKED_ROWS_INITIAL_VALUES_H_
#define SPARRING_PACKED_ROWS_INITIAL_VALUES_H_

#include <cstdint>

#include "sparring/initial_value.h"

namespace sparring::packed {

struct TableEntry;

struct TableInitializer {
  InitialValues values;
  int32_t dtype;  // the table's dtype in training, to which values are rounded
};

// REQUIRES: the kind of the table's initializer is known.
TableInitializer initializer_of(const TableEntry& table);

// out (dim): the embedding of `id`, exact in float32.
void initial_embedding(const TableInitializer& initializer, int64_t id, int64_t dim, float* out);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_INITIAL_VALUES_H_
