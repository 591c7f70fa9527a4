// A parallel loop on the pool and the calling thread.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace sparring::execution {

// Calls body(context, begin, end) for disjoint ranges that cover [0, count), and returns when all
// calls have returned. Each range except the last has at least `grain` elements. `body` must not
// throw.
//
// The caller executes ranges from the start and never waits for a free worker. Therefore the loop
// ends even if all workers are busy or blocked, it may be nested, and it may be called on a pool
// thread. The caller waits only for ranges that others have begun, and runs no other work during
// the wait, so it may hold locks.
//
// At most N threads compute concurrently (see pool.h): helpers join only if fewer than N threads
// compute, and leave between two ranges if more do. With count <= grain or N = 1 there is one plain
// call of `body`. On a thread that has borrowed the threads of a framework (framework_threads.h),
// these are the helpers, and the loop waits until all that began have finished.
void parallel_for(int64_t count, int64_t grain,
                  void (*body)(void* context, int64_t begin, int64_t end), void* context);

// The same for any callable body(begin, end).
template <typename Body>
void parallel_for(int64_t count, int64_t grain, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  parallel_for(
      count, grain,
      [](void* context, int64_t begin, int64_t end) {
        (*static_cast<Callable*>(context))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace sparring::execution
