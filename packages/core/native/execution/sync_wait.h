// sync_wait(sender): starts it and blocks the calling thread until it completes.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "execution/completion.h"
#include "execution/pool.h"

namespace sparring::execution {

template <typename Values>
struct sync_wait_state {
  void on_kept() {
    // Notified under the lock, as the waiter ends this object once it sees the flag.
    const std::lock_guard lock(mutex_);
    has_completed_ = true;
    changed_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return has_completed_; });
  }
  completion<Values> kept_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_completed_ = false;
};

// Returns the values, or nothing if it was stopped; throws the error.
//
// Throws std::logic_error on a pool thread, with nothing started: a worker that
// blocks may be the very one that the sender waits for. There, co_await it.
template <sender S>
std::optional<values_of<S>> sync_wait(S&& input) {
  if (Pool::is_pool_thread()) {
    throw std::logic_error(
        "sync_wait was called on a thread of the pool, where it could wait for itself: "
        "co_await the sender in a task, or wait on a thread outside the pool");
  }
  using state = sync_wait_state<values_of<S>>;
  state shared;
  auto operation = execution::connect(std::forward<S>(input), keeping_receiver<state>{&shared});
  operation.start();
  shared.wait();
  if (std::exception_ptr* error = shared.kept_.error()) std::rethrow_exception(*error);
  if (values_of<S>* values = shared.kept_.value()) return std::move(*values);
  return std::nullopt;
}

}  // namespace sparring::execution
