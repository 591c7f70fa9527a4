// Sends a sample of the answered requests to the process that writes the log.
//
// sparring_serve.request_log describes the messages, and starts the process before this one. Each
// request is one message of a socket. Sending never waits: if the buffer of the socket is full, the request
// is too large for it, or the process has ended, the entry is dropped and counted.
#ifndef SPARRING_SERVE_SERVER_REQUEST_LOG_H_
#define SPARRING_SERVE_SERVER_REQUEST_LOG_H_

#include <cstdint>
#include <string_view>

#include "server/metrics.h"

namespace sparring::serve {

enum class LoggedKind : uint8_t { kPull = 1, kInfer = 2 };

// Thread-safe.
class RequestLog {
 public:
  // `descriptor` is the socket, or -1 if nothing is logged; it is closed at the end of the process.
  RequestLog(int descriptor, double fraction, LabelledCounts& counts)
      : descriptor_(descriptor), fraction_(fraction), counts_(counts) {}

  // Logs a request with the version of its reply, unless it is not in the sample.
  void note(LoggedKind kind, std::string_view version, std::string_view content) {
    if (descriptor_ >= 0 && is_selected()) send(kind, version, content);
  }

 private:
  bool is_selected() const;
  void send(LoggedKind kind, std::string_view version, std::string_view content);

  const int descriptor_;
  const double fraction_;
  LabelledCounts& counts_;  // by result: queued, dropped
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_REQUEST_LOG_H_
