// Coroutines that await senders.
//
//   detached_task notify(stream_scheduler place, PythonCallback function) {
//     co_await schedule(place);   // resumes where the sender completes; rethrows its error
//     function.call(…);
//   }
#pragma once

#include <coroutine>
#include <exception>
#include <tuple>

#include "execution/senders.h"

namespace sparring::execution {

template <sender S>
class sender_awaiter {
 public:
  explicit sender_awaiter(S input)
      : operation_(execution::connect(std::move(input), receiver{this})) {}
  sender_awaiter(sender_awaiter&&) = delete;

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> awaiting) noexcept {
    awaiting_ = awaiting;
    operation_.start();  // this object may be destroyed when it returns
  }
  void await_resume() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct receiver {
    void set_value() noexcept { self->awaiting_.resume(); }
    void set_error(std::exception_ptr error) noexcept {
      self->error_ = std::move(error);
      self->awaiting_.resume();
    }
    sender_awaiter* self;
  };

  std::coroutine_handle<> awaiting_;
  std::exception_ptr error_;
  decltype(execution::connect(std::declval<S>(), std::declval<receiver>())) operation_;
};

// For senders without values. A sender that completes within start() resumes the coroutine from
// there, so a long loop over such senders would grow the stack.
template <sender S>
  requires std::same_as<values_of<S>, std::tuple<>>
sender_awaiter<std::remove_cvref_t<S>> operator co_await(S&& input) {
  return sender_awaiter<std::remove_cvref_t<S>>(std::forward<S>(input));
}

// A coroutine that starts when it is called and frees itself at its end, for background work. It
// passes on its result itself. An exception that it does not catch terminates the process.
struct detached_task {
  struct promise_type {
    detached_task get_return_object() const noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }
  };
};

}  // namespace sparring::execution
