// when_all(senders...): all of them at once, with all their values.
#pragma once

#include <atomic>

#include "execution/completion.h"

namespace sparring::execution {

template <sender... Ss>
class when_all_sender {
 public:
  using values = decltype(std::tuple_cat(std::declval<values_of<Ss>>()...));

  explicit when_all_sender(Ss... inputs) : inputs_(std::move(inputs)...) {}

  template <receiver_of<values> R>
  class operation {
   public:
    operation(std::tuple<Ss...> inputs, R receiver)
        : next_(std::move(receiver)),
          children_(std::index_sequence_for<Ss...>{}, std::move(inputs), this) {}
    operation(operation&&) = delete;

    // The last child to complete may destroy this operation; it cannot be the last
    // before the last one was started, so nothing is touched after that.
    void start() noexcept { children_.start(std::index_sequence_for<Ss...>{}); }

   private:
    template <size_t I>
    struct child_receiver {
      template <typename... Ts>
      void set_value(Ts&&... given) noexcept {
        auto& kept = std::get<I>(self->kept_);
        kept.keep_value(std::forward<Ts>(given)...);
        if (kept.error() != nullptr) self->claim(failed);
        self->arrive();
      }
      void set_error(std::exception_ptr error) noexcept {
        if (self->claim(failed)) self->error_ = std::move(error);
        self->arrive();
      }
      void set_stopped() noexcept {
        self->claim(stopped);
        self->arrive();
      }
      operation* self;
    };

    // Operation states cannot be moved into a std::tuple; bases are made in place.
    template <size_t I, typename S>
    struct child {
      child(S&& input, operation* self)
          : state(execution::connect(std::move(input), child_receiver<I>{self})) {}
      operation_of<S, child_receiver<I>> state;
    };

    template <typename Indices>
    struct all_children;
    template <size_t... Is>
    struct all_children<std::index_sequence<Is...>> : child<Is, Ss>... {
      all_children(std::index_sequence<Is...>, std::tuple<Ss...>&& inputs, operation* self)
          : child<Is, Ss>(std::get<Is>(std::move(inputs)), self)... {}
      void start(std::index_sequence<Is...>) noexcept {
        (static_cast<child<Is, Ss>&>(*this).state.start(), ...);
      }
    };

    enum outcome : int { ok, stopped, failed };

    // The first child that did not complete with a value decides how all complete.
    bool claim(outcome how) noexcept {
      int none = ok;
      return outcome_.compare_exchange_strong(none, how, std::memory_order_relaxed);
    }

    void arrive() noexcept {
      if (num_missing_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      switch (outcome_.load(std::memory_order_relaxed)) {
        case ok:
          return deliver();
        case stopped:
          return next_.set_stopped();
        default:
          return next_.set_error(first_error());
      }
    }

    void deliver() noexcept {
      std::apply(
          [this](auto&... kept) {
            std::apply([this](auto&&... each) { next_.set_value(std::move(each)...); },
                       std::tuple_cat(std::move(*kept.value())...));
          },
          kept_);
    }

    std::exception_ptr first_error() noexcept {
      if (error_ != nullptr) return std::move(error_);
      std::exception_ptr found;
      std::apply(
          [&](auto&... kept) {
            ((kept.error() != nullptr ? void(found = *kept.error()) : void()), ...);
          },
          kept_);
      return found;
    }

    R next_;
    std::atomic<int> outcome_{ok};
    std::atomic<size_t> num_missing_{sizeof...(Ss)};
    std::exception_ptr error_;
    std::tuple<completion<values_of<Ss>>...> kept_;
    all_children<std::index_sequence_for<Ss...>> children_;
  };

  template <receiver_of<values> R>
  operation<R> connect(R receiver) && {
    return operation<R>(std::move(inputs_), std::move(receiver));
  }

 private:
  std::tuple<Ss...> inputs_;
};

// Completes when all have completed, with the values of all in order; or with the
// first error or stop among them, which does not cut the others short. It completes
// wherever the last of them did.
template <sender... Ss>
  requires(sizeof...(Ss) > 0)
auto when_all(Ss&&... inputs) {
  return when_all_sender<std::decay_t<Ss>...>(std::forward<Ss>(inputs)...);
}

}  // namespace sparring::execution
