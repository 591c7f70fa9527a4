// The distinct ids of a batch, and the position of each id among them.
#ifndef SPARRING_KERNELS_DEDUP_H_
#define SPARRING_KERNELS_DEDUP_H_

#include <cstdint>

#include "sparring/storage_abi.h"

namespace sparring::kernels {

// Maximum number of ids in one call, because positions are stored in 32 bits.
inline constexpr int64_t kMostIds = INT64_C(0x7fffffff);

// Writes the distinct ids, in the order in which they first occur, and for each id
// the position of its key, so that ids[i] == keys[inverse[i]]. The result is the same
// for any number of threads.
//
// REQUIRES: 0 <= count <= kMostIds.
// Returns u, the number of keys. Throws std::bad_alloc.
int64_t dedup(const SparringExecutor* executor,
              const int64_t* ids,  // (n) int64, any value
              int64_t count,       // n
              int64_t* keys,       // out (n) int64, the first u are written
              int64_t* inverse);   // out (n) int64

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_DEDUP_H_
