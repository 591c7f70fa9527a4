// Borrows the threads of a framework (torch's intra-op threads) for loops of a thread that drives it.
//
// WHY
//   After an operation, torch's OpenMP workers spin for milliseconds on the cores that our workers
//   need. If these OpenMP workers run the loop themselves, they are awake.
//
// WHO
//   Threads that call `borrow`. Loops of all other threads, including pool workers and prefetches,
//   stay on the pool, because OpenMP would start as many new threads for each of them.
//
// NESTING
//   Inside a loop on the threads of a framework, a loop of the caller may use the pool. A loop of a
//   framework's thread runs only on that thread. Otherwise oneTBB would stay attached to the thread,
//   which lives as long as the process, and a fork would break.
//
// FORK
//   A forked child has no OpenMP workers, so a loop on them would hang. There all loops use the pool.
#pragma once

#include <cstdint>

namespace sparring::execution {

// Two functions of libtorch_cpu, declared in torch/csrc/stable/c/shim.h since torch 2.10. They
// return 0 on success.
struct FrameworkThreads {
  // Calls body(begin, end, context) for disjoint ranges that cover [begin, end), concurrently on
  // several threads or as one range on the caller, and returns when all calls have returned.
  int32_t (*parallel_for)(int64_t begin, int64_t end, int64_t grain,
                          void (*body)(int64_t begin, int64_t end, void* context), void* context);
  // Maximum number of threads of such a loop, including the caller.
  int32_t (*num_threads)(uint32_t* num_threads);
};

// From now on, loops of the calling thread run on these threads, if there are enough of them.
// Has no effect in a forked child.
// REQUIRES: the functions stay loaded until the process ends.
void borrow(const FrameworkThreads& threads);

// From now on, loops of the calling thread run on the pool.
void give_back();

// Marks the calling thread as running ranges of a loop on the threads of a framework.
class FrameworkLoopScope {
 public:
  FrameworkLoopScope();
  ~FrameworkLoopScope();
  FrameworkLoopScope(const FrameworkLoopScope&) = delete;
  FrameworkLoopScope& operator=(const FrameworkLoopScope&) = delete;

 private:
  const bool was_inside_;
};

// Whether the calling thread belongs to a framework and is running such a loop.
bool is_framework_thread();

// Returns threads for a loop of the calling thread that needs `wanted` of them; null for the pool.
const FrameworkThreads* borrowed(int wanted);

// For pool.cc, in the child.
void forget_borrowed_after_fork();

}  // namespace sparring::execution
