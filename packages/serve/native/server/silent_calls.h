// Limits the open calls whose headers have arrived and whose message has not.
//
// The message of an ordinary call follows its headers at once. If there are too many calls without a message,
// the oldest one of the address that has most of them is cancelled, as in sparring_serve.server.silent_calls.
#ifndef SPARRING_SERVE_SERVER_SILENT_CALLS_H_
#define SPARRING_SERVE_SERVER_SILENT_CALLS_H_

#include <grpc/grpc.h>

#include <algorithm>
#include <cstddef>
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

  explicit SilentCalls(size_t max_calls = kMaxCalls) : max_calls_(max_calls) {}

  // Place of a call.
  struct Place {
    std::map<std::string, Calls>::iterator host;
    Calls::iterator at;
    bool is_counted = false;  // protected by the lock, like the others
  };

  // Counts a call. `peer` is its address with the port of the connection; `place` exists until `leave`.
  void enter(const std::string& peer, grpc_call* call, Place& place) {
    grpc_call_ref(call);
    grpc_call* evicted = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (num_calls_ >= max_calls_) {
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
    if (evicted == nullptr) return;
    grpc_call_cancel(evicted, nullptr);
    grpc_call_unref(evicted);
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

  const size_t max_calls_;
  std::mutex mutex_;
  size_t num_calls_ = 0;
  std::map<std::string, Calls> hosts_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_SILENT_CALLS_H_
