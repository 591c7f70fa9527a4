// Messages for streams that cannot be used.
#ifndef SPARRING_HKV_DEVICE_STREAM_REFUSAL_H_
#define SPARRING_HKV_DEVICE_STREAM_REFUSAL_H_

#include <string>

#include "memory.h"

namespace sparring::device {

[[noreturn]] inline void refuse_device_of_stream(const std::string& found,
                                                 const std::string& wanted) {
  throw StreamRefused("the stream belongs to " + found + ", but the call to " + wanted +
                      "; pass a stream of " + wanted);
}

[[noreturn]] inline void refuse_captured_stream() {
  throw StreamRefused(
      "the stream is being captured into a graph, but a graph cannot repeat the work of a table; "
      "call it before or after the capture, or on a stream that is not captured");
}

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_STREAM_REFUSAL_H_
