// Schedulers say where work runs.
#pragma once

#include "execution/sender.h"

namespace sparring::execution {

// A cheap handle of a place where work can run. Its schedule() is a sender of no
// values that completes there; equal schedulers are the same place.
template <typename S>
concept scheduler = std::copyable<std::remove_cvref_t<S>> &&
                    std::equality_comparable<std::remove_cvref_t<S>> &&
                    requires(S&& place) {
                      { place.schedule() } -> sender;
                    };

template <scheduler S>
sender auto schedule(S&& place) {
  return place.schedule();
}

// Runs work where it is started, at once.
class inline_scheduler {
 public:
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
  };

  schedule_sender schedule() const noexcept { return {}; }
  bool operator==(const inline_scheduler&) const = default;
};

}  // namespace sparring::execution
