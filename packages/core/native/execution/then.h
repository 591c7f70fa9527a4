// then(sender, f): completes with what f returns for the sender's values.
#pragma once

#include "execution/sender.h"

namespace sparring::execution {

template <sender S, typename F>
class then_sender {
 public:
  using values = typename values_of_call<F, values_of<S>>::type;

  then_sender(S input, F function) : input_(std::move(input)), function_(std::move(function)) {}

  template <receiver_of<values> R>
  struct input_receiver {
    template <typename... Ts>
    void set_value(Ts&&... given) noexcept {
      set_value_of_call(next, std::move(function), std::forward<Ts>(given)...);
    }
    void set_error(std::exception_ptr error) noexcept { next.set_error(std::move(error)); }
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

// `function` runs where `input` completes. If it throws, that is the error.
template <sender S, typename F>
auto then(S&& input, F&& function) {
  return then_sender<std::decay_t<S>, std::decay_t<F>>(std::forward<S>(input),
                                                       std::forward<F>(function));
}

template <typename F>
auto then(F&& function) {
  return sender_closure{[function = std::forward<F>(function)](auto&& input) mutable {
    return then(std::forward<decltype(input)>(input), std::move(function));
  }};
}

}  // namespace sparring::execution
