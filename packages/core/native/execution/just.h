// Senders that complete at once, where they are started.
#pragma once

#include "execution/sender.h"

namespace sparring::execution {

template <typename... Ts>
class just_sender {
 public:
  using values = std::tuple<Ts...>;

  explicit just_sender(values given) : given_(std::move(given)) {}

  template <receiver_of<values> R>
  struct operation {
    void start() noexcept {
      std::apply([&](Ts&... each) { receiver.set_value(std::move(each)...); }, given);
    }
    values given;
    R receiver;
  };

  template <receiver_of<values> R>
  operation<R> connect(R receiver) && {
    return {std::move(given_), std::move(receiver)};
  }

 private:
  values given_;
};

// Completes with copies of the arguments.
template <typename... Ts>
just_sender<std::decay_t<Ts>...> just(Ts&&... given) {
  return just_sender<std::decay_t<Ts>...>(
      std::tuple<std::decay_t<Ts>...>(std::forward<Ts>(given)...));
}

// Completes with the error, in place of values of types `Ts`.
template <typename... Ts>
class just_error_sender {
 public:
  using values = std::tuple<Ts...>;

  explicit just_error_sender(std::exception_ptr error) : error_(std::move(error)) {}

  template <receiver_of<values> R>
  struct operation {
    void start() noexcept { receiver.set_error(std::move(error)); }
    std::exception_ptr error;
    R receiver;
  };

  template <receiver_of<values> R>
  operation<R> connect(R receiver) && {
    return {std::move(error_), std::move(receiver)};
  }

 private:
  std::exception_ptr error_;
};

template <typename... Ts>
just_error_sender<Ts...> just_error(std::exception_ptr error) {
  return just_error_sender<Ts...>(std::move(error));
}

// Completes stopped, in place of values of types `Ts`.
template <typename... Ts>
struct just_stopped_sender {
  using values = std::tuple<Ts...>;

  template <receiver_of<values> R>
  struct operation {
    void start() noexcept { receiver.set_stopped(); }
    R receiver;
  };

  template <receiver_of<values> R>
  operation<R> connect(R receiver) && {
    return {std::move(receiver)};
  }
};

template <typename... Ts>
just_stopped_sender<Ts...> just_stopped() {
  return {};
}

}  // namespace sparring::execution
