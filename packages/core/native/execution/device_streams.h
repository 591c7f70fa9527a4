// The functions of a SparringStreams with exceptions for statuses.
#pragma once

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

#include "sparring/stream_abi.h"

namespace sparring::execution {

// The device refuses a call, or has failed.
class StreamError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// It has failed, and stays so in this process.
class StreamLostError : public StreamError {
 public:
  using StreamError::StreamError;
};

// A stream did not come where it was awaited in time. What is on it goes on.
class StreamDeadlineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Calls one function of the table. Throws StreamError or StreamLostError,
// naming device and `doing`.
void call_streams(const SparringStreams& streams, SparringStreamFunction function,
                  const char* doing, SparringStreamCall& arguments);

// Throws std::invalid_argument, naming both versions, unless it can be used here.
void check_streams(const SparringStreams& streams);

// An event, freed with this.
class StreamEvent {
 public:
  // Recorded: reached when all that is on the stream now is done.
  StreamEvent(const SparringStreams& streams, void* stream);
  ~StreamEvent();
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  // Throws StreamError if what it waits for has failed.
  bool is_reached() const;
  // Later work on `stream` runs after it; the calling thread does not wait.
  void order_before(void* stream) const;

 private:
  const SparringStreams& streams_;
  void* event_;
};

}  // namespace sparring::execution
