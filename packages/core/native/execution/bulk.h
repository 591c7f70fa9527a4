// bulk(sender, count, f): a parallel loop between two senders.
#pragma once

#include <atomic>

#include "execution/parallel_for.h"
#include "execution/pool.h"
#include "execution/sender.h"

namespace sparring::execution {

// Calls f(i, values...) for all i in [0, count); returns the first exception thrown.
// After one, indices not yet begun are left out.
template <typename F, typename... Ts>
std::exception_ptr run_bulk(int64_t count, F& function, Ts&... values) {
  std::atomic<bool> has_failed{false};
  std::exception_ptr error;
  const auto body = [&](int64_t begin, int64_t end) {
    try {
      for (int64_t i = begin; i < end && !has_failed.load(std::memory_order_relaxed); ++i) {
        function(i, values...);
      }
    } catch (...) {
      if (!has_failed.exchange(true)) error = std::current_exception();
    }
  };
  if (Pool::is_pool_thread()) {
    parallel_for(count, 1, body);
  } else {
    body(0, count);
  }
  return error;
}

template <sender S, typename F>
class bulk_sender {
 public:
  using values = values_of<S>;

  bulk_sender(S input, int64_t count, F function)
      : input_(std::move(input)), count_(count), function_(std::move(function)) {}

  template <receiver_of<values> R>
  struct input_receiver {
    template <typename... Ts>
    void set_value(Ts&&... given) noexcept {
      if (std::exception_ptr error = run_bulk(count, function, given...)) {
        next.set_error(std::move(error));
      } else {
        next.set_value(std::forward<Ts>(given)...);
      }
    }
    void set_error(std::exception_ptr error) noexcept { next.set_error(std::move(error)); }
    void set_stopped() noexcept { next.set_stopped(); }

    R next;
    int64_t count;
    F function;
  };

  template <receiver_of<values> R>
  auto connect(R receiver) && {
    return execution::connect(std::move(input_), input_receiver<R>{std::move(receiver), count_,
                                                                   std::move(function_)});
  }

 private:
  S input_;
  int64_t count_;
  F function_;
};

// The loop runs where `input` completes: over the pool if that is a pool thread, else
// on that thread alone. The input's values go to each call by reference, and on.
template <sender S, typename F>
auto bulk(S&& input, int64_t count, F&& function) {
  return bulk_sender<std::decay_t<S>, std::decay_t<F>>(std::forward<S>(input), count,
                                                       std::forward<F>(function));
}

template <typename F>
auto bulk(int64_t count, F&& function) {
  return sender_closure{[count, function = std::forward<F>(function)](auto&& input) mutable {
    return bulk(std::forward<decltype(input)>(input), count, std::move(function));
  }};
}

}  // namespace sparring::execution
