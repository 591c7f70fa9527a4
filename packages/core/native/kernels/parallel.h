// Runs a loop on the threads that the host lends, or on the caller's alone.
#ifndef SPARRING_KERNELS_PARALLEL_H_
#define SPARRING_KERNELS_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "sparring/storage_abi.h"

namespace sparring::kernels {

// Bytes that one piece of a parallel loop should move, at the least. Waking a
// thread costs microseconds, so a call that moves less than two pieces stays on
// the calling thread.
inline constexpr int64_t kPieceBytes = 128 * 1024;

inline bool is_serial(const SparringExecutor* executor) {
  return executor == nullptr || executor->concurrency < 2;
}

// Items per piece, for items that move `item_bytes` each.
constexpr int64_t grain_for(int64_t item_bytes) {
  return std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, item_bytes));
}

// Calls body(begin, end) over disjoint ranges that cover [0, count). Serial when
// `executor` is NULL or there is not enough for two ranges of `grain`. An
// exception of `body` is thrown again here, once all ranges have ended.
template <class Body>
void parallel_for(const SparringExecutor* executor, int64_t count, int64_t grain,
                  const Body& body) {
  if (count <= 0) return;
  if (is_serial(executor) || count < 2 * grain) {
    body(int64_t{0}, count);
    return;
  }
  struct Context {
    const Body& body;
    std::atomic<bool> has_failed{false};
    std::exception_ptr error{};
  } context{body};
  executor->parallel_for(
      executor->self, count, grain,
      [](void* opaque, int64_t begin, int64_t end) {
        auto& shared = *static_cast<Context*>(opaque);
        try {
          shared.body(begin, end);
        } catch (...) {
          if (!shared.has_failed.exchange(true)) shared.error = std::current_exception();
        }
      },
      &context);
  if (context.error) std::rethrow_exception(context.error);
}

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_PARALLEL_H_
