#include "execution/device_streams.h"

namespace sparring::execution {
namespace {

SparringStreamCall make_call() {
  SparringStreamCall call{};
  call.struct_bytes = sizeof call;
  return call;
}

}  // namespace

void call_streams(const SparringStreams& streams, SparringStreamFunction function,
                  const char* doing, SparringStreamCall& arguments) {
  const SparringStatus status = function(streams.self, &arguments);
  if (status == SPARRING_OK) return;
  SparringError& error = arguments.error;
  const std::string found = error.message != nullptr ? error.message : "no message";
  if (error.release != nullptr) error.release(&error);
  const std::string message = std::string(streams.device) + ": " + doing + " failed: " + found;
  if (status != SPARRING_DEVICE_LOST) throw StreamError(message);
  throw StreamLostError(message + "; restart the process, because a lost GPU cannot be used again "
                                  "in this one");
}

void check_streams(const SparringStreams& streams) {
  if (streams.version.major == SPARRING_STREAMS_ABI_MAJOR &&
      streams.struct_bytes >= sizeof(SparringStreams)) {
    return;
  }
  const auto text = [](uint32_t major, uint32_t minor) {
    return std::to_string(major) + "." + std::to_string(minor);
  };
  throw std::invalid_argument(
      "streams of version " + text(streams.version.major, streams.version.minor) + ", " +
      std::to_string(streams.struct_bytes) + " bytes, were passed, but this sparring requires version " +
      text(SPARRING_STREAMS_ABI_MAJOR, SPARRING_STREAMS_ABI_MINOR) + " with at least " +
      std::to_string(sizeof(SparringStreams)) +
      " bytes; install releases of sparring and of the backend that belong together");
}

StreamEvent::StreamEvent(const SparringStreams& streams, void* stream) : streams_(streams) {
  SparringStreamCall call = make_call();
  call_streams(streams, streams.make_event, "creating an event", call);
  event_ = call.event;
  call.stream = stream;
  try {
    call_streams(streams, streams.record_event, "recording an event", call);
  } catch (...) {
    streams.free_event(streams.self, &call);
    throw;
  }
}

StreamEvent::~StreamEvent() {
  SparringStreamCall call = make_call();
  call.event = event_;
  // A lost GPU has nothing to free.
  if (streams_.free_event(streams_.self, &call) != SPARRING_OK && call.error.release != nullptr) {
    call.error.release(&call.error);
  }
}

bool StreamEvent::is_reached() const {
  SparringStreamCall call = make_call();
  call.event = event_;
  call_streams(streams_, streams_.query_event, "work on a stream", call);
  return call.is_done != 0;
}

void StreamEvent::order_before(void* stream) const {
  SparringStreamCall call = make_call();
  call.event = event_;
  call.stream = stream;
  call_streams(streams_, streams_.order_after, "ordering a stream after an event", call);
}

}  // namespace sparring::execution
