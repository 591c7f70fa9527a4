// Blocks a test until a sender has completed on another thread.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "execution/detached_task.h"

namespace sparring::testing {

class Completion {
 public:
  void end(std::exception_ptr error) {
    // Notified under the lock, because the waiter destroys this object when it sees the flag.
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    has_ended_ = true;
    changed_.notify_one();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return has_ended_; });
    if (error_) std::rethrow_exception(std::move(error_));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
  bool has_ended_ = false;
};

template <execution::sender S>
execution::detached_task tell(S input, Completion& completion) {
  // Moved, because the waiter reads and frees the error while this thread continues.
  std::exception_ptr error;
  try {
    co_await std::move(input);
  } catch (...) {
    error = std::current_exception();
  }
  completion.end(std::move(error));
}

// Throws its error.
template <execution::sender S>
void wait_for(S&& input) {
  Completion completion;
  tell(std::forward<S>(input), completion);
  completion.wait();
}

}  // namespace sparring::testing
