// Streams of a device as schedulers: co_await schedule(stream_scheduler(streams, stream, …)).
//
// A wait for the current position of a stream ends on a thread of the pool:
//
//     begin ──► event and host call on the stream ──► the host call runs ──► on_reached
//                             │
//                             ├── the event reports an error (queried every 20 ms) ──► on_failed
//                             └── the deadline passes ───────────────────────────────► on_failed
//
// A failed device makes no host calls, and a query of its events may hang. Therefore one thread
// watches deadlines, and another one queries events. The first of the three ends the wait, and the
// others find no wait any more: a host call receives a number instead of an address, so it may run
// at any later time. The thread that watches deadlines enqueues all ended waits.
#pragma once

#include <chrono>
#include <exception>
#include <memory>

#include "execution/arena.h"
#include "execution/device_streams.h"
#include "execution/senders.h"

namespace sparring::execution {

class StreamWait : private PoolTask {
 public:
  // `streams` lives as long as the process.
  StreamWait(const SparringStreams& streams, void* stream, std::chrono::nanoseconds deadline)
      : streams_(streams), stream_(stream), deadline_(deadline) {}
  StreamWait(const StreamWait&) = delete;
  StreamWait& operator=(const StreamWait&) = delete;

  // Calls on_reached or on_failed once, on a thread of the pool. If nothing could be enqueued on
  // the stream, calls on_failed on the calling thread before it returns. Either function may
  // destroy this object, which must live until then.
  void begin() noexcept;

 protected:
  ~StreamWait() = default;
  virtual void on_reached() noexcept = 0;
  // With a StreamError, a StreamDeadlineError, or the exception that prevented the wait.
  virtual void on_failed(std::exception_ptr error) noexcept = 0;

 private:
  friend class StreamWaits;
  void run() noexcept override;

  const SparringStreams& streams_;
  void* const stream_;
  const std::chrono::nanoseconds deadline_;
  std::shared_ptr<StreamEvent> event_;
  // The failure, unless the position was reached.
  std::exception_ptr failure_;
  bool is_late_ = false;
};

// Schedules work on the pool for when the stream has reached its current position.
class stream_scheduler {
 public:
  // `streams` lives as long as the process, and the stream until the end of the wait.
  stream_scheduler(const SparringStreams& streams, void* stream,
                   std::chrono::nanoseconds deadline) noexcept
      : streams_(&streams), stream_(stream), deadline_(deadline) {}

  // Completes on a thread of the pool, never on a thread of the driver, when all work that was on
  // the stream at start() has completed. Errors: StreamError, StreamDeadlineError.
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

 private:
  const SparringStreams* streams_;
  void* stream_;
  std::chrono::nanoseconds deadline_;
};

// For tests: number of waits in progress in this process.
int64_t num_stream_waits();

}  // namespace sparring::execution
