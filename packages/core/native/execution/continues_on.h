// continues_on(sender, scheduler): the sender's completion, carried to the scheduler.
#pragma once

#include "execution/completion.h"
#include "execution/scheduler.h"

namespace sparring::execution {

template <sender S, scheduler Place>
class continues_on_sender {
 public:
  using values = values_of<S>;

  continues_on_sender(S input, Place place) : input_(std::move(input)), place_(std::move(place)) {}

  template <receiver_of<values> R>
  class operation {
   public:
    operation(S input, Place place, R receiver)
        : next_(std::move(receiver)),
          first_(execution::connect(std::move(input), keeping_receiver<operation>{this})),
          second_(execution::connect(execution::schedule(place), arrival_receiver{this})) {}
    operation(operation&&) = delete;

    void start() noexcept { first_.start(); }

   private:
    friend struct keeping_receiver<operation>;
    void on_kept() noexcept { second_.start(); }

    struct arrival_receiver {
      void set_value() noexcept { self->kept_.deliver(self->next_); }
      // The scheduler failed: there is no way to the place, and that is the error.
      void set_error(std::exception_ptr error) noexcept { self->next_.set_error(std::move(error)); }
      void set_stopped() noexcept { self->next_.set_stopped(); }
      operation* self;
    };

    R next_;
    completion<values> kept_;
    operation_of<S, keeping_receiver<operation>> first_;
    operation_of<decltype(execution::schedule(std::declval<Place&>())), arrival_receiver> second_;
  };

  template <receiver_of<values> R>
  operation<R> connect(R receiver) && {
    return operation<R>(std::move(input_), std::move(place_), std::move(receiver));
  }

 private:
  S input_;
  Place place_;
};

// Values, errors and stopped alike complete at `place`.
template <sender S, scheduler Place>
auto continues_on(S&& input, Place&& place) {
  return continues_on_sender<std::decay_t<S>, std::decay_t<Place>>(std::forward<S>(input),
                                                                   std::forward<Place>(place));
}

template <scheduler Place>
auto continues_on(Place&& place) {
  return sender_closure{[place = std::forward<Place>(place)](auto&& input) {
    return continues_on(std::forward<decltype(input)>(input), place);
  }};
}

}  // namespace sparring::execution
