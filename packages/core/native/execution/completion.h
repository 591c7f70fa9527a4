// How a sender completed, kept for later.
#pragma once

#include <variant>

#include "execution/sender.h"

namespace sparring::execution {

struct stopped_t {};

template <typename Values>
class completion {
 public:
  // Keeps the values, or the error that moving one of them threw.
  template <typename... Ts>
  void keep_value(Ts&&... given) noexcept {
    try {
      kept_.template emplace<Values>(std::forward<Ts>(given)...);
    } catch (...) {
      keep_error(std::current_exception());
    }
  }
  void keep_error(std::exception_ptr error) noexcept {
    kept_.template emplace<std::exception_ptr>(std::move(error));
  }
  void keep_stopped() noexcept { kept_.template emplace<stopped_t>(); }

  // Null unless it completed that way.
  Values* value() noexcept { return std::get_if<Values>(&kept_); }
  std::exception_ptr* error() noexcept { return std::get_if<std::exception_ptr>(&kept_); }

  // Completes `receiver` likewise. This object may be gone when it returns.
  // REQUIRES: something was kept.
  template <receiver_of<Values> R>
  void deliver(R& receiver) noexcept {
    if (Values* values = value()) {
      std::apply([&](auto&... each) { receiver.set_value(std::move(each)...); }, *values);
    } else if (std::exception_ptr* kept = error()) {
      receiver.set_error(std::move(*kept));
    } else {
      receiver.set_stopped();
    }
  }

 private:
  std::variant<std::monostate, Values, std::exception_ptr, stopped_t> kept_;
};

// Keeps the completion in owner->kept_, then calls owner->on_kept().
template <typename Owner>
struct keeping_receiver {
  template <typename... Ts>
  void set_value(Ts&&... given) noexcept {
    owner->kept_.keep_value(std::forward<Ts>(given)...);
    owner->on_kept();
  }
  void set_error(std::exception_ptr error) noexcept {
    owner->kept_.keep_error(std::move(error));
    owner->on_kept();
  }
  void set_stopped() noexcept {
    owner->kept_.keep_stopped();
    owner->on_kept();
  }
  Owner* owner;
};

}  // namespace sparring::execution
