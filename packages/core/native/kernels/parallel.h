// Runs a loop on the threads of an executor, or only on the calling thread.
#ifndef SPARRING_KERNELS_PARALLEL_H_
#define SPARRING_KERNELS_PARALLEL_H_

#include <algorithm>
#include <cstdint>

#include "sparring/storage_abi.h"
#include "sparring/storage_border.h"

namespace sparring::kernels {

// Minimum number of bytes that one piece of a parallel loop should move. Waking a thread
// takes microseconds, so a call that moves less than two pieces runs on the calling
// thread.
inline constexpr int64_t kPieceBytes = 128 * 1024;

inline bool is_serial(const SparringExecutor* executor) {
  return executor == nullptr || executor->concurrency < 2;
}

// Items per piece, for items that move `item_bytes` each.
constexpr int64_t grain_for(int64_t item_bytes) {
  return std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, item_bytes));
}

// Ids of a batch, and bytes of its embeddings, below which loops over its tables run on the calling
// thread. They take about 50 microseconds there; on a busy machine a helper thread may start
// milliseconds later.
inline constexpr int64_t kSmallBatchIds = 2048;
inline constexpr int64_t kSmallBatchBytes = 2 * kPieceBytes;

// Returns the executor for a loop over the tables of a batch; NULL, for the calling thread only, if
// the batch is small.
inline const SparringExecutor* executor_for_batch(const SparringExecutor* executor,
                                                  int64_t num_ids, int64_t num_bytes) {
  return num_ids < kSmallBatchIds && num_bytes < kSmallBatchBytes ? nullptr : executor;
}

// Calls body(begin, end) for disjoint ranges that cover [0, count). Serial if `executor` is
// NULL or `count` is too small for two ranges of `grain`. Rethrows an exception of `body`
// after all ranges have ended.
template <class Body>
void parallel_for(const SparringExecutor* executor, int64_t count, int64_t grain,
                  const Body& body) {
  border::parallel_for(count < 2 * grain ? nullptr : executor, count, grain, body);
}

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_PARALLEL_H_
