// The pool's threads: the only place that knows oneTBB.
#pragma once

#include <memory>

namespace sparring::execution {

// One piece of work for the pool. It is stored in memory of the caller that enqueues it, so that
// enqueueing a sender's operation allocates nothing of ours. It must live until `run` has
// begun; `run` may end its life.
class PoolTask {
 public:
  virtual void run() noexcept = 0;

 protected:
  ~PoolTask() = default;
};

// Up to `threads` worker threads of oneTBB in a task_arena of their own. They
// are started by work and sleep without it. Any thread may enqueue.
class Arena {
 public:
  explicit Arena(int threads);
  // REQUIRES: everything enqueued has run.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Calls on_worker(task) once, soon, on a worker thread.
  void enqueue(PoolTask& task, void (*on_worker)(PoolTask&));

  // Ends oneTBB and waits for its threads, so that a fork copies no scheduler that
  // counts on threads which the child lacks. False if it cannot end, as another
  // thread or library of the process uses it. REQUIRES: no Arena is open.
  static bool end_scheduler();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sparring::execution
