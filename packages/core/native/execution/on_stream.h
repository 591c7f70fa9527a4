// Streams of a device as senders: co_await on_stream(streams, stream).
#pragma once

#include "execution/scheduler.h"
#include "execution/stream_wait.h"

namespace sparring::execution {

// The place "on the pool, once the stream has come here". Equal schedulers are the
// same stream of the same device.
class stream_scheduler {
 public:
  static constexpr std::chrono::nanoseconds default_deadline = std::chrono::seconds(60);

  // `streams` lives as long as the process; the stream until what is awaited has come.
  stream_scheduler(const SparringStreams& streams, void* stream,
                   std::chrono::nanoseconds deadline = default_deadline) noexcept
      : streams_(&streams), stream_(stream), deadline_(deadline) {}

  // Completes on a thread of the pool, never on one of the device's, when all is done that
  // was on the stream at start. Errors: StreamError, StreamDeadlineError.
  struct schedule_sender {
    using values = std::tuple<>;

    template <receiver_of<values> R>
    class operation final : StreamWait {
     public:
      operation(const schedule_sender& from, R receiver)
          : StreamWait(*from.streams, from.stream, from.deadline), receiver_(std::move(receiver)) {}

      void start() noexcept { this->begin(); }

     private:
      void on_reached() noexcept override { receiver_.set_value(); }
      void on_failed(std::exception_ptr error) noexcept override {
        receiver_.set_error(std::move(error));
      }
      R receiver_;
    };

    template <receiver_of<values> R>
    operation<R> connect(R receiver) && {
      return operation<R>(*this, std::move(receiver));
    }

    const SparringStreams* streams;
    void* stream;
    std::chrono::nanoseconds deadline;
  };

  schedule_sender schedule() const noexcept { return {streams_, stream_, deadline_}; }
  bool operator==(const stream_scheduler& other) const noexcept {
    return streams_ == other.streams_ && stream_ == other.stream_;
  }

 private:
  const SparringStreams* streams_;
  void* stream_;
  std::chrono::nanoseconds deadline_;
};

inline auto on_stream(const SparringStreams& streams, void* stream,
                      std::chrono::nanoseconds deadline = stream_scheduler::default_deadline) {
  return stream_scheduler(streams, stream, deadline).schedule();
}

}  // namespace sparring::execution
