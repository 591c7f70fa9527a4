// sync_wait(sender): starts it and blocks the calling thread until it completes.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "execution/completion.h"
#include "execution/pool.h"

namespace sparring::execution {

// Returns the values, or nothing if it was stopped; throws the error.
//
// Throws std::logic_error on a pool thread, with nothing started: a worker that
// blocks may be the very one that the sender waits for. There, co_await it.
template <sender S>
std::optional<values_of<S>> sync_wait(S&& input) {
  struct state {
    void arrive() {
      // Under the lock, as the waiter ends this object once it sees the flag.
      const std::lock_guard lock(mutex);
      has_completed = true;
      changed.notify_one();
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool has_completed = false;
    completion<values_of<S>> kept;
  };
  struct wait_receiver {
    void set_value(auto&&... given) noexcept {
      shared->kept.keep_value(std::forward<decltype(given)>(given)...);
      shared->arrive();
    }
    void set_error(std::exception_ptr error) noexcept {
      shared->kept.keep_error(std::move(error));
      shared->arrive();
    }
    void set_stopped() noexcept {
      shared->kept.keep_stopped();
      shared->arrive();
    }
    state* shared;
  };

  if (Pool::is_pool_thread()) {
    throw std::logic_error(
        "sync_wait was called on a thread of the pool, where it could wait for itself: "
        "co_await the sender in a task, or wait on a thread outside the pool");
  }
  state shared;
  auto operation = execution::connect(std::forward<S>(input), wait_receiver{&shared});
  operation.start();
  std::unique_lock lock(shared.mutex);
  shared.changed.wait(lock, [&] { return shared.has_completed; });
  if (std::exception_ptr* error = shared.kept.error()) std::rethrow_exception(*error);
  if (values_of<S>* values = shared.kept.value()) return std::move(*values);
  return std::nullopt;
}

}  // namespace sparring::execution
