// Recently requested ids per table, for the warm-up of a newer version.
#ifndef SPARRING_SERVE_TABLES_RECENT_IDS_H_
#define SPARRING_SERVE_TABLES_RECENT_IDS_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace sparring::serve {

// Ids of the last 64 calls for one table, up to 4,096 of each call. All methods are thread-safe.
class RecentIds {
 public:
  void note(const int64_t* ids, int64_t count) {  // ids: (count) int64, host
    std::vector<int64_t> noted(ids, ids + (count < kIdsOfCall ? count : kIdsOfCall));
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(noted));
    if (calls_.size() > kCalls) calls_.pop_front();
  }

  // Returns the distinct ids; those of the newest call are first.
  std::vector<int64_t> newest_first() const {
    std::deque<std::vector<int64_t>> calls;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      calls = calls_;
    }
    std::vector<int64_t> found;
    std::unordered_set<int64_t> seen;
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
      for (const int64_t id : *call) {
        if (seen.insert(id).second) found.push_back(id);
      }
    }
    return found;
  }

 private:
  static constexpr int64_t kIdsOfCall = 4096;
  static constexpr size_t kCalls = 64;

  mutable std::mutex mutex_;
  std::deque<std::vector<int64_t>> calls_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_TABLES_RECENT_IDS_H_
