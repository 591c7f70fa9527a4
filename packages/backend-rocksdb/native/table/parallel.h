// Spreads a loop over the threads that the caller lends.
#ifndef SPARRING_ROCKSDB_TABLE_PARALLEL_H_
#define SPARRING_ROCKSDB_TABLE_PARALLEL_H_

#include <cstdint>

#include "sparring/storage_abi.h"

namespace sparring::flash {

// Calls body(begin, end) over disjoint ranges that cover [0, count), each at
// least `grain` long but the last. `body` must not throw.
// `executor` NULL: on the calling thread alone.
template <class Body>
void parallel_for(const SparringExecutor* executor, int64_t count, int64_t grain,
                  const Body& body) {
  if (executor == nullptr || executor->concurrency < 2 || count <= grain) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  executor->parallel_for(
      executor->self, count, grain,
      [](void* context, int64_t begin, int64_t end) {
        (*static_cast<const Body*>(context))(begin, end);
      },
      const_cast<Body*>(&body));
}

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_PARALLEL_H_
