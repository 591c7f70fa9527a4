// The execution pool: one for each process, shared by everything native.
//
// SIZE
//   `num_threads` (N) is how many threads may compute at once for this library:
//   the workers, and any thread of a framework that calls `parallel_for`, since
//   that thread takes part itself. N is the number of usable cores unless
//   `configure` says otherwise. Workers exist only once there is work, and sleep
//   when there is none.
//
// FORK
//   A forked child has no worker threads. If the pool is idle when the process
//   forks, it ends its workers first and both sides start new ones on demand. If
//   it is busy, or another thread of the process keeps oneTBB alive, the child's
//   copy of oneTBB is unusable: there `parallel_for` runs on the caller alone and
//   each task gets a thread of its own. Nothing hangs either way.
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

// Counts the calling thread among those that compute, once however deep it nests.
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

  // Is the calling thread at work for the pool?
  static bool is_pool_thread();

  // Sets N; 0 means the number of usable cores. Waits a moment for work that is
  // just ending. Throws std::invalid_argument outside 0 ... max_threads, and
  // PoolBusyError if there is work, both without changing anything.
  void configure(int threads);

  // 1 in a forked child that lost its threads, whatever was configured.
  int num_threads() const { return executor_.concurrency; }

  // Runs `task` once on a worker thread. Throws std::bad_alloc or
  // std::system_error if that cannot be arranged; then it will not run.
  void enqueue(PoolTask& task);

  // The lent threads in the form of storage_abi.h. The struct stays where it is
  // for the life of the process.
  const SparringExecutor* executor() const { return &executor_; }

  // For parallel_for.cc: threads that compute now, at most N of them helpers.
  std::atomic<int>& num_computing() { return num_computing_; }

 private:
  Pool();

  static void run_on_worker(PoolTask& task);
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();
  // Polls until nothing is under way. REQUIRES: mutex_ is held; so nothing new
  // begins meanwhile.
  bool becomes_idle(std::chrono::milliseconds patience) const;

  SparringExecutor executor_{};
  std::atomic<int> num_computing_{0};
  // Tasks enqueued and not yet ended. Grows under mutex_ only.
  std::atomic<int64_t> num_outstanding_{0};

  std::mutex mutex_;
  std::unique_ptr<Arena> arena_;  // null until there is work
  bool is_fork_clean_ = true;     // of the fork under way: the child can use oneTBB
  bool is_orphan_ = false;        // a forked child that cannot
};

inline const SparringExecutor* process_executor() { return Pool::process().executor(); }

}  // namespace sparring::execution
