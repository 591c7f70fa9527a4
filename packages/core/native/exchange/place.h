// Copies rows from their owners to their positions in the batch.
#ifndef SPARRING_EXCHANGE_PLACE_H_
#define SPARRING_EXCHANGE_PLACE_H_

#include <cstdint>

#include "sparring/storage_abi.h"

namespace sparring::exchange {

// out[places[i]] = rows[i], byte for byte. REQUIRES: places are distinct positions of rows
// in `out`.
void place_rows(const SparringExecutor* executor,
                const void* rows,       // (n, row_bytes) bytes
                const int64_t* places,  // (n)
                int64_t count,          // n
                int64_t row_bytes,
                void* out);  // (u, row_bytes) bytes


}  // namespace sparring::exchange

#endif  // SPARRING_EXCHANGE_PLACE_H_
