// Limits the open calls whose headers have arrived and whose message has not.
//
// The message of an ordinary call follows its headers at once. If there are too many calls without a message,
// the oldest one of the address that has most of them is cancelled, as in sparring_serve.server.silent_calls.
#ifndef SPARRING_SERVE_SERVER_SILENT_CALLS_H_
#define SPARRING_SERVE_SERVER_SILENT_CALLS_H_

#include <grpc/grpc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>

namespace sparring::serve {

// Thread-safe. Calls are cancelled without the lock, because gRPC may run their callbacks at once.
class SilentCalls {
 private:
  struct Waiting;
  using Calls = std::list<Waiting>;  // of one host, oldest first

 public:
  static constexpr size_t kMaxCalls = 256;
  // Maximum time to wait for the message of a call, if as many calls as may be slow wait already.
  static constexpr double kSlowSeconds = 2.0;

  // Returns the number of calls whose messages may arrive slowly, so that parts of messages do not need more
  // memory than `max_bytes_in_flight`; at least 4.
  static size_t num_slow_calls(int64_t max_bytes_in_flight) {
    constexpr int64_t kMaxMessageBytes = 64 << 20, kMinSlowCalls = 4;
    return static_cast<size_t>(std::clamp<int64_t>(max_bytes_in_flight / kMaxMessageBytes, kMinSlowCalls,
                                                   static_cast<int64_t>(kMaxCalls)));
  }

  explicit SilentCalls(size_t num_slow = kMaxCalls) : num_slow_(num_slow) {}

  // Place of a call.
  struct Place {
    std::map<std::string, Calls>::iterator host;
    Calls::iterator at;
    bool is_counted = false;  // protected by the lock, like the others
  };

  // Counts a call, and returns whether its message may take longer than `kSlowSeconds`. `peer` is its address
  // with the port of the connection; `place` exists until `leave`.
  bool enter(const std::string& peer, grpc_call* call, Place& place) {
    grpc_call_ref(call);
    grpc_call* evicted = nullptr;
    bool may_be_slow = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      may_be_slow = num_calls_ < num_slow_;
      if (num_calls_ >= kMaxCalls) {
        const auto greediest =
            std::max_element(hosts_.begin(), hosts_.end(), [](const auto& left, const auto& right) {
              return left.second.size() < right.second.size();
            });
        evicted = remove(*greediest->second.front().place);
      }
      place.host = hosts_.try_emplace(peer.substr(0, peer.rfind(':'))).first;
      place.at = place.host->second.insert(place.host->second.end(), {call, &place});
      place.is_counted = true;
      ++num_calls_;
    }
    if (evicted != nullptr) {
      grpc_call_cancel(evicted, nullptr);
      grpc_call_unref(evicted);
    }
    return may_be_slow;
  }

  // Ends the wait of a call, which may have been cancelled.
  void leave(Place& place) {
    grpc_call* left = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (place.is_counted) left = remove(place);
    }
    if (left != nullptr) grpc_call_unref(left);
  }

 private:
  struct Waiting {
    grpc_call* call;  // a reference
    Place* place;
  };

  // REQUIRES: the lock, and a call that is counted. Returns its reference.
  grpc_call* remove(Place& place) {
    grpc_call* const call = place.at->call;
    place.is_counted = false;
    place.host->second.erase(place.at);
    if (place.host->second.empty()) hosts_.erase(place.host);
    --num_calls_;
    return call;
  }

  const size_t num_slow_;
  std::mutex mutex_;
  size_t num_calls_ = 0;
  std::map<std::string, Calls> hosts_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_SILENT_CALLS_H_
