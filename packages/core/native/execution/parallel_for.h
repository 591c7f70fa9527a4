// A loop over the pool in which the caller takes part.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace sparring::execution {

// Calls body(context, begin, end) over disjoint ranges that cover [0, count), each
// at least `grain` long but the last, and returns when all have returned. `body`
// must not throw.
//
// The caller works from the start and never waits for a worker to become free, so
// the loop ends even if all workers are busy or blocked, may be nested, and may be
// called on a pool thread. It waits only for ranges that others have begun, and
// runs no other work meanwhile: locks may be held across it.
//
// At most N threads compute at once (see pool.h): helpers join only while fewer
// than N do, and leave between two ranges when there are more. With count <= grain
// or N = 1 it is one plain call of `body`. On a thread that has borrowed those of a framework
// (framework_threads.h) they are the helpers, and all that began must leave before it returns.
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
