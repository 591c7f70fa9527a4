// Calls the functions of a SparringStreams, and converts statuses to exceptions.
#pragma once

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

#include "sparring/stream_abi.h"

namespace sparring::execution {

// A call of the device failed, or the device has failed.
class StreamError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device has failed permanently in this process.
class StreamLostError : public StreamError {
 public:
  using StreamError::StreamError;
};

// A stream did not reach the awaited position before the deadline. Its work continues.
class StreamDeadlineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Calls one function of the table. Throws StreamError or StreamLostError with the device
// and `doing`.
void call_streams(const SparringStreams& streams, SparringStreamFunction function,
                  const char* doing, SparringStreamCall& arguments);

// Throws std::invalid_argument with both versions, unless the version is supported.
void check_streams(const SparringStreams& streams);

// An event, which the destructor frees.
class StreamEvent {
 public:
  // Records the event: it is reached when all work that is on the stream now has completed.
  StreamEvent(const SparringStreams& streams, void* stream);
  ~StreamEvent();
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  // Throws StreamError if the work before the event has failed.
  bool is_reached() const;
  // Later work on `stream` runs after the event. The calling thread does not wait.
  void order_before(void* stream) const;

 private:
  const SparringStreams& streams_;
  void* event_;
};

}  // namespace sparring::execution
