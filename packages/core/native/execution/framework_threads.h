// Threads of a framework, borrowed for the loops of a thread that drives it: torch's intra-op threads.
//
// WHY
//   After an operation, torch's OpenMP workers spin for milliseconds on the cores that our own
//   workers would need. A loop that these workers run themselves finds them awake.
//
// WHO
//   Threads that call `borrow`. Loops of all others stay on the pool, those of its own workers and of
//   prefetches among them: OpenMP would start as many threads again for each of them.
//
// NESTING
//   Inside a loop on a framework's threads, a loop of the caller may use the pool. One of a
//   framework's own thread runs on that thread alone: oneTBB would stay attached to it, and the
//   thread lives as long as the process, which a fork does not survive.
//
// FORK
//   A forked child has no OpenMP workers, and a loop on them hangs. There all loops stay on the pool.
#pragma once

#include <cstdint>

namespace sparring::execution {

// Two functions of libtorch_cpu, declared in torch/csrc/stable/c/shim.h since torch 2.10. They
// return 0, or else an error.
struct FrameworkThreads {
  // Calls body(begin, end, context) over disjoint ranges that cover [begin, end), and returns when
  // all have returned: at once on several threads, or one range on the caller.
  int32_t (*parallel_for)(int64_t begin, int64_t end, int64_t grain,
                          void (*body)(int64_t begin, int64_t end, void* context), void* context);
  // Most threads of such a loop, the caller among them.
  int32_t (*num_threads)(uint32_t* num_threads);
};

// Loops of the calling thread run on these threads from now on, where there are enough of them.
// Without effect in a forked child.
// REQUIRES: the functions stay loaded until the process ends.
void borrow(const FrameworkThreads& threads);

// Loops of the calling thread stay on the pool from now on.
void give_back();

// Marks the calling thread as one that runs ranges of a loop on a framework's threads.
class FrameworkLoopScope {
 public:
  FrameworkLoopScope();
  ~FrameworkLoopScope();
  FrameworkLoopScope(const FrameworkLoopScope&) = delete;
  FrameworkLoopScope& operator=(const FrameworkLoopScope&) = delete;

 private:
  const bool was_inside_;
};

// Whether the calling thread is a framework's own, in the middle of such a loop.
bool is_framework_thread();

// Threads for a loop of the calling thread that wants `wanted` of them; null: the pool's.
const FrameworkThreads* borrowed(int wanted);

// For pool.cc, in the child.
void forget_borrowed_after_fork();

}  // namespace sparring::execution
