// The threads of the pool. Only this class uses oneTBB.
#pragma once

#include <memory>

namespace sparring::execution {

// One piece of work for the pool. It is stored in the caller's memory, so that enqueueing a
// sender's operation needs no allocation. It must live until `run` has begun; `run` may destroy it.
class PoolTask {
 public:
  virtual void run() noexcept = 0;

 protected:
  ~PoolTask() = default;
};

// Up to `threads` worker threads of oneTBB in a separate task_arena. Work starts them, and they
// sleep without work. Any thread may enqueue.
class Arena {
 public:
  explicit Arena(int threads);
  // REQUIRES: all enqueued tasks have run.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Calls on_worker(task) once on a worker thread.
  void enqueue(PoolTask& task, void (*on_worker)(PoolTask&));

  // Ends oneTBB and waits for its threads, so that a fork does not copy a scheduler whose
  // threads do not exist in the child. Returns false if another thread or library of the
  // process uses oneTBB, so that it cannot end. REQUIRES: no Arena is open.
  static bool end_scheduler();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sparring::execution
