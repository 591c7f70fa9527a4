// One piece of work for the pool.
#pragma once

namespace sparring::execution {

// It is stored in memory of the caller that enqueues it, so that enqueueing a sender's
// operation allocates nothing of ours. It must live until `run` has begun;
// `run` may end its life.
class PoolTask {
 public:
  virtual void run() noexcept = 0;

 protected:
  ~PoolTask() = default;
};

}  // namespace sparring::execution
