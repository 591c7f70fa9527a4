// Senders in coroutines: co_await sender.
#pragma once

#include <coroutine>
#include <utility>

#include "execution/completion.h"

namespace sparring::execution {

// A coroutine whose promise can end it as stopped, without resuming it; the handle
// that is returned goes on instead.
template <typename P>
concept stoppable_promise = requires(P& promise) {
  { promise.unhandled_stopped() } noexcept -> std::same_as<std::coroutine_handle<>>;
};

// What co_await gives: nothing, the one value, or a tuple of several.
template <typename Values>
decltype(auto) unpack(Values&& values) {
  if constexpr (std::tuple_size_v<std::remove_cvref_t<Values>> == 1) {
    return std::tuple_element_t<0, std::remove_cvref_t<Values>>(
        std::get<0>(std::forward<Values>(values)));
  } else if constexpr (std::tuple_size_v<std::remove_cvref_t<Values>> > 1) {
    return std::remove_cvref_t<Values>(std::forward<Values>(values));
  }
}

// A call of start() that is under way on this thread.
struct start_call {
  bool has_completed = false;
  static inline thread_local start_call* current = nullptr;
};

// Resumes where the sender completes. An error is thrown into the coroutine; stopped
// ends it.
template <sender S, stoppable_promise Promise>
class sender_awaiter {
 public:
  explicit sender_awaiter(S&& input)
      : operation_(execution::connect(std::move(input), keeping_receiver<sender_awaiter>{this})) {}
  sender_awaiter(sender_awaiter&&) = delete;

  bool await_ready() const noexcept { return false; }

  bool await_suspend(std::coroutine_handle<Promise> awaiting) noexcept {
    awaiting_ = awaiting;
    // A sender that completes within start() must not resume us from in there: a loop
    // over such senders would nest ever deeper. It leaves word in `call` instead.
    start_call call;
    call_ = &call;
    start_call* const outer = std::exchange(start_call::current, &call);
    operation_.start();
    // Unless it has left word, another thread may have resumed us by now, and this
    // object may be gone.
    start_call::current = outer;
    if (!call.has_completed) return true;
    if (!is_stopped()) return false;
    awaiting.promise().unhandled_stopped().resume();
    return true;
  }

  decltype(auto) await_resume() {
    if (std::exception_ptr* error = kept_.error()) std::rethrow_exception(*error);
    return unpack(std::move(*kept_.value()));
  }

 private:
  friend struct keeping_receiver<sender_awaiter>;

  bool is_stopped() noexcept { return kept_.value() == nullptr && kept_.error() == nullptr; }

  void on_kept() noexcept {
    if (call_ == start_call::current) {
      call_->has_completed = true;
    } else if (is_stopped()) {
      awaiting_.promise().unhandled_stopped().resume();
    } else {
      awaiting_.resume();
    }
  }

  std::coroutine_handle<Promise> awaiting_;
  start_call* call_ = nullptr;  // of no meaning once start() has returned
  completion<values_of<S>> kept_;
  operation_of<S, keeping_receiver<sender_awaiter>> operation_;
};

}  // namespace sparring::execution
