// Closes connections that have more open calls than `grpc.max_concurrent_streams` allows.
//
// A call that was cancelled no longer counts for gRPC, which reads such calls faster than it deletes them: each
// caller could fill the memory of the server (CVE-2023-44487). Releases after 1.51 limit them.
#ifndef SPARRING_SERVE_SERVER_OPEN_CALLS_H_
#define SPARRING_SERVE_SERVER_OPEN_CALLS_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

namespace sparring::serve {

// Thread-safe.
class OpenCalls {
 public:
  // Several times the maximum number of concurrent calls, which is 128.
  static constexpr int64_t kMaxPerConnection = 1024;

  // Counts a call. `peer` is the address of its connection as gRPC writes it: "ipv4:10.0.0.1:5000". If the
  // connection has too many calls, closes it, and all its calls end.
  void enter(const std::string& peer);
  // A call was deleted.
  void leave(const std::string& peer);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_OPEN_CALLS_H_
