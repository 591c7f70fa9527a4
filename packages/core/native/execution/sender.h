// The vocabulary of std::execution (P2300), in the small.
//
// A sender describes work. connect(sender, receiver) gives an operation_state; start
// runs it; it then completes its receiver exactly once, by set_value, set_error or
// set_stopped. Nothing runs before start, and an operation state stays where it is
// and alive until it has completed.
//
// What is smaller here than in P2300:
// - A sender completes with one set of values, always of the same types:
//   `sender::values`, a std::tuple of decayed types (std::tuple<> for none).
// - Every error is a std::exception_ptr, and any sender may complete by it or stopped.
// - There are no environments: no stop tokens (when_all waits for all its children),
//   no allocators, and no completion scheduler (see bulk.h).
// - A connected sender is used up; connecting an lvalue connects a copy.
#pragma once

#include <concepts>
#include <exception>
#include <tuple>
#include <type_traits>
#include <utility>

namespace sparring::execution {

// ---- receivers ------------------------------------------------------------

template <typename R>
concept receiver = std::move_constructible<R> && requires(R& r, std::exception_ptr error) {
  { r.set_error(std::move(error)) } noexcept;
  { r.set_stopped() } noexcept;
};

template <typename R, typename Values>
inline constexpr bool takes_values = false;
template <typename R, typename... Ts>
inline constexpr bool takes_values<R, std::tuple<Ts...>> =
    requires(R& r, Ts&&... values) {
      { r.set_value(std::forward<Ts>(values)...) } noexcept;
    };

// A receiver that takes the values of the tuple type `Values`, one argument each.
template <typename R, typename Values>
concept receiver_of = receiver<R> && takes_values<R, Values>;

template <typename R, typename... Ts>
void set_value(R& receiver, Ts&&... values) noexcept {
  receiver.set_value(std::forward<Ts>(values)...);
}

template <receiver R>
void set_error(R& receiver, std::exception_ptr error) noexcept {
  receiver.set_error(std::move(error));
}

template <receiver R>
void set_stopped(R& receiver) noexcept {
  receiver.set_stopped();
}

// ---- senders --------------------------------------------------------------

template <typename O>
concept operation_state = std::destructible<O> && requires(O& operation) {
  { operation.start() } noexcept;
};

template <operation_state O>
void start(O& operation) noexcept {
  operation.start();
}

template <typename T>
inline constexpr bool is_tuple = false;
template <typename... Ts>
inline constexpr bool is_tuple<std::tuple<Ts...>> = true;

template <typename S>
concept sender = std::move_constructible<std::remove_cvref_t<S>> &&
                 is_tuple<typename std::remove_cvref_t<S>::values>;

template <sender S>
using values_of = typename std::remove_cvref_t<S>::values;

template <sender S, receiver_of<values_of<S>> R>
operation_state auto connect(S&& sender, R receiver) {
  return std::remove_cvref_t<S>(std::forward<S>(sender)).connect(std::move(receiver));
}

template <sender S, typename R>
using operation_of = decltype(execution::connect(std::declval<S>(), std::declval<R>()));

// The tuple type of what a call returns: none for void.
template <typename T>
struct values_returned {
  using type = std::tuple<std::decay_t<T>>;
};
template <>
struct values_returned<void> {
  using type = std::tuple<>;
};

// The values of an adaptor that calls `F` with the values of `Values`.
template <typename F, typename Values>
struct values_of_call;
template <typename F, typename... Ts>
struct values_of_call<F, std::tuple<Ts...>> {
  using type = typename values_returned<std::invoke_result_t<F, Ts...>>::type;
};

// Calls `function` and completes `receiver` with what it returns or throws.
template <typename R, typename F, typename... Ts>
void set_value_of_call(R& receiver, F&& function, Ts&&... values) noexcept {
  using result = std::invoke_result_t<F, Ts...>;
  // set_value is noexcept: what is caught here was thrown by `function`.
  try {
    if constexpr (std::is_void_v<result>) {
      std::forward<F>(function)(std::forward<Ts>(values)...);
      receiver.set_value();
    } else {
      receiver.set_value(std::forward<F>(function)(std::forward<Ts>(values)...));
    }
  } catch (...) {
    receiver.set_error(std::current_exception());
  }
}

// ---- pipes: sender | then(f) is then(sender, f) ----------------------------

template <typename F>
struct sender_closure {
  F adapt;
};
template <typename F>
sender_closure(F) -> sender_closure<F>;

template <sender S, typename F>
sender auto operator|(S&& sender, sender_closure<F> closure) {
  return std::move(closure.adapt)(std::forward<S>(sender));
}

}  // namespace sparring::execution
