// The execution pool: one per process, shared by all native code.
//
// SIZE
//   `num_threads` (N) is the maximum number of threads that compute concurrently for
//   this library: the workers, and each thread of a framework that calls
//   `parallel_for`, because it executes ranges itself. N is the number of usable
//   cores, unless `configure` sets it. Workers are started by the first work, and
//   sleep without work.
//
// FORK
//   A forked child has no worker threads. If the pool is idle at the fork, it ends
//   its workers first, and both processes start new ones on demand. If it is busy,
//   or another thread of the process keeps oneTBB alive, the child cannot use its
//   copy of oneTBB. Then `parallel_for` runs only on the caller, and each task
//   gets a separate thread. The child never hangs.
//
// THREADS
//   Every method may be called on any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "execution/arena.h"
#include "sparring/storage_abi.h"

namespace sparring::execution {

// Counts the calling thread as computing, once for any depth of nesting.
class ComputingScope {
 public:
  explicit ComputingScope(std::atomic<int>& num_computing)
      : num_computing_(is_counted_ ? nullptr : &num_computing) {
    if (num_computing_ != nullptr) {
      num_computing_->fetch_add(1, std::memory_order_relaxed);
      is_counted_ = true;
    }
  }

  ~ComputingScope() {
    if (num_computing_ != nullptr) {
      is_counted_ = false;
      num_computing_->fetch_sub(1, std::memory_order_relaxed);
    }
  }

  ComputingScope(const ComputingScope&) = delete;
  ComputingScope& operator=(const ComputingScope&) = delete;

  static bool is_counted() { return is_counted_; }

 private:
  static inline thread_local bool is_counted_ = false;
  std::atomic<int>* num_computing_;  // null where an outer scope counted already
};

// `configure` was called while the pool had work.
class PoolBusyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Pool {
 public:
  static constexpr int max_threads = 1024;

  // Never destroyed: workers may outlive the destructors of the process.
  static Pool& process();

  // Whether the calling thread is working for the pool.
  static bool is_pool_thread();

  // Sets N; 0 means the number of usable cores. Waits briefly for work that is about to
  // end. Throws std::invalid_argument outside of 0 ... max_threads, and PoolBusyError if
  // there is work, in both cases without changes.
  void configure(int threads);

  // 1 in a forked child that lost its threads, independent of the configuration.
  int num_threads() const { return executor_.concurrency; }

  // Runs `task` once on a worker thread. If it throws std::bad_alloc or
  // std::system_error, the task will not run.
  void enqueue(PoolTask& task);

  // The threads of the pool as the struct of storage_abi.h, which exists as long as the
  // process.
  const SparringExecutor* executor() const { return &executor_; }

  // For parallel_for.cc: number of computing threads, at most N of them helpers.
  std::atomic<int>& num_computing() { return num_computing_; }

 private:
  Pool();

  static void run_on_worker(PoolTask& task);
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();
  // Polls until no work is in progress. REQUIRES: mutex_ is held, so that no new work
  // begins.
  bool becomes_idle(std::chrono::milliseconds patience) const;

  SparringExecutor executor_{};
  std::atomic<int> num_computing_{0};
  // Number of tasks that are enqueued and have not ended. It grows only under mutex_.
  std::atomic<int64_t> num_outstanding_{0};

  std::mutex mutex_;
  std::unique_ptr<Arena> arena_;  // null until there is work
  bool is_fork_clean_ = true;     // whether the child of the current fork can use oneTBB
  bool is_orphan_ = false;        // whether this is a forked child that cannot
};

inline const SparringExecutor* process_executor() { return Pool::process().executor(); }

}  // namespace sparring::execution
