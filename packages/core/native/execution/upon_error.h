// upon_error(sender, f): turns an error into the value that f returns for it.
#pragma once

#include "execution/sender.h"

namespace sparring::execution {

template <sender S, typename F>
class upon_error_sender {
 public:
  using values = values_of<S>;
  static_assert(
      std::is_same_v<values, typename values_returned<
                                 std::invoke_result_t<F, std::exception_ptr>>::type>,
      "the function of upon_error must return what its sender would have sent");

  upon_error_sender(S input, F function)
      : input_(std::move(input)), function_(std::move(function)) {}

  template <receiver_of<values> R>
  struct input_receiver {
    template <typename... Ts>
    void set_value(Ts&&... given) noexcept {
      next.set_value(std::forward<Ts>(given)...);
    }
    void set_error(std::exception_ptr error) noexcept {
      set_value_of_call(next, std::move(function), std::move(error));
    }
    void set_stopped() noexcept { next.set_stopped(); }

    R next;
    F function;
  };

  template <receiver_of<values> R>
  auto connect(R receiver) && {
    return execution::connect(
        std::move(input_), input_receiver<R>{std::move(receiver), std::move(function_)});
  }

 private:
  S input_;
  F function_;
};

// `function` takes the std::exception_ptr; if it throws, that is the new error.
template <sender S, typename F>
auto upon_error(S&& input, F&& function) {
  return upon_error_sender<std::decay_t<S>, std::decay_t<F>>(std::forward<S>(input),
                                                             std::forward<F>(function));
}

template <typename F>
auto upon_error(F&& function) {
  return sender_closure{[function = std::forward<F>(function)](auto&& input) mutable {
    return upon_error(std::forward<decltype(input)>(input), std::move(function));
  }};
}

}  // namespace sparring::execution
