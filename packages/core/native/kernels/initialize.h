// Initial rows: the values are defined by sparring/initial_value.h.
#ifndef SPARRING_KERNELS_INITIALIZE_H_
#define SPARRING_KERNELS_INITIALIZE_H_

#include <cstdint>

#include "kernels/level.h"
#include "kernels/row_layout.h"
#include "sparring/initial_value.h"
#include "sparring/storage_abi.h"

namespace sparring::kernels {

// A table's initializer, for rows of `dim`.
struct InitializerSpec : Initializer {
  int64_t dim;
};

struct InitializeRows {
  RowLayout layout;      // its dim is the initializer's
  const int64_t* keys;   // (n)
  const uint8_t* found;  // (n): rows where it is not 0 stay as they are
  int64_t count;         // n
  const void* state;     // (state_width) of the computing type, or NULL: zeros
  void* rows;            // in, out (n) rows of row_bytes, one after the other
};

// Writes the missing rows: the initial embedding, then `state`. The bits do not
// depend on the order of keys, the number of threads or the SIMD level.
void initialize(const SparringExecutor* executor, const InitializerSpec& spec,
                const InitializeRows& rows);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_INITIALIZE_H_
