// Streams of a device as schedulers: co_await schedule(stream_scheduler(streams, stream, …)).
//
// A wait for the point where a stream is now ends on a thread of the pool:
//
//     begin ──► event and host call on the stream ──► the host call comes ──► on_reached
//                             │
//                             ├── the event reports an error (asked every 20 ms) ──► on_failed
//                             └── the deadline passes ──────────────────────────────► on_failed
//
// A device makes no host call once it has failed, and may hang when it is asked. So one
// thread keeps deadlines, and another one asks. The first of them ends the wait; the
// others find that it is gone: what the host call is given is a number, not an address,
// so it may come as late as it likes. The thread that keeps deadlines enqueues all of them.
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

  // Calls on_reached or on_failed once, on a thread of the pool; on_failed on this one,
  // before it returns, where nothing could be put on the stream. Either may end the life
  // of this object, which must live until then.
  void begin() noexcept;

 protected:
  ~StreamWait() = default;
  virtual void on_reached() noexcept = 0;
  // With a StreamError, a StreamDeadlineError, or what has kept it from waiting.
  virtual void on_failed(std::exception_ptr error) noexcept = 0;

 private:
  friend class StreamWaits;
  void run() noexcept override;

  const SparringStreams& streams_;
  void* const stream_;
  const std::chrono::nanoseconds deadline_;
  std::shared_ptr<StreamEvent> event_;
  // How it ended, unless it was reached.
  std::exception_ptr failure_;
  bool is_late_ = false;
};

// The place "on the pool, once the stream has come here".
class stream_scheduler {
 public:
  // `streams` lives as long as the process; the stream until what is awaited has come.
  stream_scheduler(const SparringStreams& streams, void* stream,
                   std::chrono::nanoseconds deadline) noexcept
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

 private:
  const SparringStreams* streams_;
  void* stream_;
  std::chrono::nanoseconds deadline_;
};

// For tests: waits under way in this process.
int64_t num_stream_waits();

}  // namespace sparring::execution
