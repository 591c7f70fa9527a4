// The process's pool as a scheduler.
#pragma once

#include "execution/pool.h"
#include "execution/senders.h"

namespace sparring::execution {

// Completes on a worker. If the pool cannot start one, start() reports the error:
// std::bad_alloc, std::system_error.
class pool_scheduler {
 public:
  struct schedule_sender {
    using values = std::tuple<>;

    template <receiver_of<values> R>
    class operation final : PoolTask {
     public:
      explicit operation(R receiver) : receiver_(std::move(receiver)) {}
      operation(operation&&) = delete;

      void start() noexcept {
        std::exception_ptr error;
        try {
          return Pool::process().enqueue(*this);
        } catch (...) {
          error = std::current_exception();
        }
        receiver_.set_error(std::move(error));
      }

     private:
      void run() noexcept override { receiver_.set_value(); }
      R receiver_;
    };

    template <receiver_of<values> R>
    operation<R> connect(R receiver) && {
      return operation<R>(std::move(receiver));
    }
  };

  schedule_sender schedule() const noexcept { return {}; }
};

}  // namespace sparring::execution
