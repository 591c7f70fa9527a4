// Senders in coroutines: co_await sender.
#pragma once

#include <atomic>
#include <coroutine>

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

// Resumes where the sender completes. An error is thrown into the coroutine; stopped
// ends it.
template <sender S, stoppable_promise Promise>
class sender_awaiter {
 public:
  explicit sender_awaiter(S&& input)
      : operation_(execution::connect(std::move(input), await_receiver{this})) {}
  sender_awaiter(sender_awaiter&&) = delete;

  bool await_ready() const noexcept { return false; }

  bool await_suspend(std::coroutine_handle<Promise> awaiting) noexcept {
    awaiting_ = awaiting;
    operation_.start();
    // A sender that completed within start() must not resume us from in there: a loop
    // over such senders would nest ever deeper. False means: go on at once.
    if (!has_met_.exchange(true, std::memory_order_acq_rel)) return true;
    if (!is_stopped()) return false;
    awaiting.promise().unhandled_stopped().resume();
    return true;
  }

  decltype(auto) await_resume() {
    if (std::exception_ptr* error = kept_.error()) std::rethrow_exception(*error);
    return unpack(std::move(*kept_.value()));
  }

 private:
  struct await_receiver {
    void set_value(auto&&... given) noexcept {
      self->kept_.keep_value(std::forward<decltype(given)>(given)...);
      self->arrive();
    }
    void set_error(std::exception_ptr error) noexcept {
      self->kept_.keep_error(std::move(error));
      self->arrive();
    }
    void set_stopped() noexcept {
      self->kept_.keep_stopped();
      self->arrive();
    }
    sender_awaiter* self;
  };

  bool is_stopped() noexcept { return kept_.value() == nullptr && kept_.error() == nullptr; }

  // Whoever comes second, start() returning or the completion, lets the coroutine go on.
  void arrive() noexcept {
    if (!has_met_.exchange(true, std::memory_order_acq_rel)) return;
    if (is_stopped()) {
      awaiting_.promise().unhandled_stopped().resume();
    } else {
      awaiting_.resume();
    }
  }

  std::coroutine_handle<Promise> awaiting_;
  std::atomic<bool> has_met_{false};
  completion<values_of<S>> kept_;
  operation_of<S, await_receiver> operation_;
};

}  // namespace sparring::execution
