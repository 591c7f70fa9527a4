// The subset of std::execution (P2300) that this library uses.
//
//   sync_wait(schedule(executor_scheduler(executor))      the caller and the executor's threads
//             | bulk(num_tables, f) | then(g))
//   co_await schedule(pool_scheduler())                   a worker of the pool
//   co_await schedule(stream_scheduler(streams, stream))  a worker, after the stream's current work
//
// A sender describes work. connect(sender, receiver) returns an operation state, and its start()
// runs the work. The operation then completes the receiver exactly once, with set_value or
// set_error. Nothing runs before start(), and an operation state must not move or be destroyed
// before it has completed.
//
// Differences from P2300:
// - A sender completes with one set of values, always of the same types:
//   `sender::values`, a std::tuple of decayed types (std::tuple<> for none).
// - Every error is a std::exception_ptr, and there is no cancellation.
// - There are no environments. Instead, a sender of an executor has completion_scheduler(),
//   which `then` and `bulk` pass on.
// - sync_wait accepts only senders of an executor, which need no thread except the caller's, so
//   it may be called anywhere, even on a worker. Coroutines await others: see detached_task.h.
// - A sender can be connected only once.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/parallel.h"
#include "sparring/storage_abi.h"

namespace sparring::execution {

// ---- concepts ---------------------------------------------------------------

template <typename R, typename Values>
inline constexpr bool takes_values = false;
template <typename R, typename... Ts>
inline constexpr bool takes_values<R, std::tuple<Ts...>> = requires(R& receiver, Ts&&... values) {
  { receiver.set_value(std::forward<Ts>(values)...) } noexcept;
};

// A receiver that accepts the values of the tuple type `Values`, one argument each.
template <typename R, typename Values>
concept receiver_of = std::move_constructible<R> && takes_values<R, Values> &&
                      requires(R& receiver, std::exception_ptr error) {
                        { receiver.set_error(std::move(error)) } noexcept;
                      };

template <typename O>
concept operation_state = std::destructible<O> && requires(O& operation) {
  { operation.start() } noexcept;
};

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

// A cheap handle of an execution resource. Its schedule() returns a sender without values that
// completes there.
template <typename S>
concept scheduler = std::copyable<std::remove_cvref_t<S>> && requires(S&& place) {
  { place.schedule() } -> sender;
};

template <scheduler S>
sender auto schedule(S&& place) {
  return place.schedule();
}

// sender | then(f) is then(sender, f).
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

// ---- the threads of an executor ----------------------------------------------

// The calling thread, and the threads of `executor` for loops (NULL: none). Scheduled work runs
// on the thread that calls start(), within start(); `bulk` distributes it.
class executor_scheduler {
 public:
  explicit executor_scheduler(const SparringExecutor* executor) noexcept : executor_(executor) {}

  struct schedule_sender {
    using values = std::tuple<>;

    template <receiver_of<values> R>
    struct operation {
      void start() noexcept { receiver.set_value(); }
      R receiver;
    };

    template <receiver_of<values> R>
    operation<R> connect(R receiver) && {
      return {std::move(receiver)};
    }
    executor_scheduler completion_scheduler() const noexcept {
      return executor_scheduler(executor);
    }

    const SparringExecutor* executor;
  };

  schedule_sender schedule() const noexcept { return {executor_}; }
  const SparringExecutor* executor() const noexcept { return executor_; }

 private:
  const SparringExecutor* executor_;
};

template <typename S>
concept executor_sender = sender<S> && requires(const std::remove_cvref_t<S>& input) {
  { input.completion_scheduler() } -> std::same_as<executor_scheduler>;
};

// ---- then ---------------------------------------------------------------------

// The values that a call of `F` with `Values` returns; none for void.
template <typename F, typename Values>
struct values_of_call;
template <typename F, typename... Ts>
struct values_of_call<F, std::tuple<Ts...>> {
  using result = std::invoke_result_t<F, Ts...>;
  using type = typename std::conditional_t<std::is_void_v<result>, std::type_identity<std::tuple<>>,
                                           std::type_identity<std::tuple<std::decay_t<result>>>>::type;
};

template <sender S, typename F>
class then_sender {
 public:
  using values = typename values_of_call<F, values_of<S>>::type;

  then_sender(S input, F function) : input_(std::move(input)), function_(std::move(function)) {}

  template <receiver_of<values> R>
  struct input_receiver {
    template <typename... Ts>
    void set_value(Ts&&... given) noexcept {
      std::exception_ptr error;
      // set_value is noexcept: what is caught here was thrown by `function`.
      try {
        if constexpr (std::is_same_v<values, std::tuple<>>) {
          std::move(function)(std::forward<Ts>(given)...);
          return next.set_value();
        } else {
          return next.set_value(std::move(function)(std::forward<Ts>(given)...));
        }
      } catch (...) {
        error = std::current_exception();
      }
      // Outside of the handler, which would keep the error alive until all later work has run.
      next.set_error(std::move(error));
    }
    void set_error(std::exception_ptr error) noexcept { next.set_error(std::move(error)); }

    R next;
    F function;
  };

  template <receiver_of<values> R>
  auto connect(R receiver) && {
    return execution::connect(std::move(input_),
                              input_receiver<R>{std::move(receiver), std::move(function_)});
  }
  executor_scheduler completion_scheduler() const noexcept
    requires executor_sender<S>
  {
    return input_.completion_scheduler();
  }

 private:
  S input_;
  F function_;
};

// Completes with the result of function(values...). `function` runs where `input` completes. If
// it throws, the exception is the error.
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

// ---- bulk ---------------------------------------------------------------------

template <executor_sender S, typename F>
class bulk_sender {
 public:
  using values = values_of<S>;

  bulk_sender(S input, int64_t count, int64_t grain, F function)
      : input_(std::move(input)), count_(count), grain_(grain), function_(std::move(function)) {}

  template <receiver_of<values> R>
  struct input_receiver {
    template <typename... Ts>
    void set_value(Ts&&... given) noexcept {
      std::exception_ptr error;
      try {
        kernels::parallel_for(executor, count, grain, [&](int64_t begin, int64_t end) {
          function(begin, end, given...);
        });
      } catch (...) {
        error = std::current_exception();
      }
      if (error) return next.set_error(std::move(error));
      next.set_value(std::forward<Ts>(given)...);
    }
    void set_error(std::exception_ptr error) noexcept { next.set_error(std::move(error)); }

    R next;
    const SparringExecutor* executor;
    int64_t count;
    int64_t grain;
    F function;
  };

  template <receiver_of<values> R>
  auto connect(R receiver) && {
    const SparringExecutor* const executor = completion_scheduler().executor();
    return execution::connect(std::move(input_),
                              input_receiver<R>{std::move(receiver), executor, count_, grain_,
                                                std::move(function_)});
  }
  executor_scheduler completion_scheduler() const noexcept { return input_.completion_scheduler(); }

 private:
  S input_;
  int64_t count_;
  int64_t grain_;
  F function_;
};

// Calls function(begin, end, values&...) for disjoint ranges that cover [0, count), on the threads
// of the sender's executor, and completes with the values. Each range except the last has at least
// `grain` elements. The first exception is the error, after all ranges have ended.
template <typename F>
auto bulk_chunked(int64_t count, int64_t grain, F&& function) {
  return sender_closure{
      [count, grain, function = std::forward<F>(function)]<typename S>(S&& input) mutable {
        return bulk_sender<std::decay_t<S>, std::decay_t<F>>(std::forward<S>(input), count, grain,
                                                             std::move(function));
      }};
}

// The same for function(i, values&...) and each i in [0, count). If it throws, the rest of its
// range is skipped.
template <typename F>
auto bulk(int64_t count, F&& function) {
  return bulk_chunked(count, 1,
                      [function = std::forward<F>(function)](int64_t begin, int64_t end,
                                                             auto&... values) {
                        for (int64_t i = begin; i < end; ++i) function(i, values...);
                      });
}

// ---- sync_wait ----------------------------------------------------------------

template <typename Values>
struct sync_wait_result {
  struct receiver {
    template <typename... Ts>
    void set_value(Ts&&... given) noexcept {
      try {
        found->values.emplace(std::forward<Ts>(given)...);
      } catch (...) {
        found->error = std::current_exception();
      }
    }
    void set_error(std::exception_ptr error) noexcept { found->error = std::move(error); }
    sync_wait_result* found;
  };

  std::optional<Values> values;
  std::exception_ptr error;
};

// Runs the sender on the calling thread and the threads of its executor. Returns the values, or
// throws the error. The result is optional as in P2300, but never empty.
template <executor_sender S>
std::optional<values_of<S>> sync_wait(S&& input) {
  using result = sync_wait_result<values_of<S>>;
  result found;
  auto operation = execution::connect(std::forward<S>(input), typename result::receiver{&found});
  operation.start();
  if (found.error) std::rethrow_exception(found.error);
  return std::move(found.values);
}

}  // namespace sparring::execution
