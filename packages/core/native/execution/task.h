// task<T>: a coroutine that is a sender of T, or of nothing for void.
//
// It is lazy: it runs when awaited, or connected and started, on the thread that does
// so, until it awaits something that completes elsewhere. Inside, any sender and any
// task can be awaited; awaiting a task passes control without growing the stack.
#pragma once

#include <coroutine>
#include <utility>

#include "execution/awaitable.h"

namespace sparring::execution {

// Who is told that a task ended; the handle that is returned goes on.
class task_listener {
 public:
  virtual std::coroutine_handle<> on_done() noexcept = 0;
  virtual std::coroutine_handle<> on_stopped() noexcept = 0;

 protected:
  ~task_listener() = default;
};

template <typename T>
class task;

// What does not depend on T.
class task_promise_base {
 public:
  struct final_awaiter {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept {
      return ended.promise().listener_->on_done();
    }
    void await_resume() const noexcept {}
  };

  std::suspend_always initial_suspend() const noexcept { return {}; }
  final_awaiter final_suspend() const noexcept { return {}; }
  std::coroutine_handle<> unhandled_stopped() noexcept { return listener_->on_stopped(); }
  void listen(task_listener& listener) noexcept { listener_ = &listener; }

 private:
  task_listener* listener_ = nullptr;
};

template <typename Promise, typename Values>
class task_promise_of : public task_promise_base {
 public:
  void unhandled_exception() noexcept { kept_.keep_error(std::current_exception()); }
  completion<Values>& kept() noexcept { return kept_; }

  template <typename Awaited>
  decltype(auto) await_transform(Awaited&& awaited) {
    if constexpr (requires { std::forward<Awaited>(awaited).template awaiter<Promise>(); }) {
      return std::forward<Awaited>(awaited).template awaiter<Promise>();
    } else if constexpr (sender<Awaited>) {
      using S = std::remove_cvref_t<Awaited>;
      return sender_awaiter<S, Promise>(S(std::forward<Awaited>(awaited)));
    } else {
      return std::forward<Awaited>(awaited);
    }
  }

 protected:
  completion<Values> kept_;
};

template <typename T>
class task_promise : public task_promise_of<task_promise<T>, std::tuple<T>> {
 public:
  task<T> get_return_object() noexcept;
  template <std::convertible_to<T> U>
  void return_value(U&& value) noexcept {
    this->kept_.keep_value(std::forward<U>(value));
  }
};

template <>
class task_promise<void> : public task_promise_of<task_promise<void>, std::tuple<>> {
 public:
  task<void> get_return_object() noexcept;
  void return_void() noexcept { kept_.keep_value(); }
};

template <typename T = void>
class [[nodiscard]] task {
 public:
  using promise_type = task_promise<T>;
  using values = typename values_returned<T>::type;
  using handle = std::coroutine_handle<promise_type>;

  explicit task(handle coroutine) noexcept : coroutine_(coroutine) {}
  task(task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, {})) {}
  task& operator=(task&&) = delete;
  ~task() {
    if (coroutine_) coroutine_.destroy();
  }

  // As a sender.
  template <receiver_of<values> R>
  class operation final : task_listener {
   public:
    operation(task&& started, R receiver)
        : task_(std::move(started)), receiver_(std::move(receiver)) {}
    operation(operation&&) = delete;

    void start() noexcept {
      task_.coroutine_.promise().listen(*this);
      task_.coroutine_.resume();
    }

   private:
    std::coroutine_handle<> on_done() noexcept override {
      // The receiver may destroy us, and with us the coroutine that holds the result.
      completion<values> result = std::move(task_.coroutine_.promise().kept());
      result.deliver(receiver_);
      return std::noop_coroutine();
    }
    std::coroutine_handle<> on_stopped() noexcept override {
      receiver_.set_stopped();
      return std::noop_coroutine();
    }
    task task_;
    R receiver_;
  };

  template <receiver_of<values> R>
  operation<R> connect(R receiver) && {
    return operation<R>(std::move(*this), std::move(receiver));
  }

  // As something another task awaits.
  template <stoppable_promise Awaiting>
  class task_awaiter final : task_listener {
   public:
    explicit task_awaiter(task&& awaited) : task_(std::move(awaited)) {}
    task_awaiter(task_awaiter&&) = delete;

    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Awaiting> awaiting) noexcept {
      awaiting_ = awaiting;
      task_.coroutine_.promise().listen(*this);
      return task_.coroutine_;
    }
    T await_resume() {
      completion<values>& kept = task_.coroutine_.promise().kept();
      if (std::exception_ptr* error = kept.error()) std::rethrow_exception(*error);
      return unpack(std::move(*kept.value()));
    }

   private:
    std::coroutine_handle<> on_done() noexcept override { return awaiting_; }
    std::coroutine_handle<> on_stopped() noexcept override {
      return awaiting_.promise().unhandled_stopped();
    }
    task task_;
    std::coroutine_handle<Awaiting> awaiting_;
  };

  template <stoppable_promise Awaiting>
  task_awaiter<Awaiting> awaiter() && {
    return task_awaiter<Awaiting>(std::move(*this));
  }

 private:
  handle coroutine_;
};

template <typename T>
task<T> task_promise<T>::get_return_object() noexcept {
  return task<T>(std::coroutine_handle<task_promise>::from_promise(*this));
}

inline task<void> task_promise<void>::get_return_object() noexcept {
  return task<void>(std::coroutine_handle<task_promise>::from_promise(*this));
}

}  // namespace sparring::execution
