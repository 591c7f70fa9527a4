// Switches to newer versions on its own thread: periodically, and after hints.
#ifndef SPARRING_SERVE_SERVER_REFRESHER_H_
#define SPARRING_SERVE_SERVER_REFRESHER_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "server/metrics.h"
#include "tables/serving_tables.h"

namespace sparring::serve {

struct RefreshResult {
  bool is_new = false;
  std::string refused;  // reason for which a newer version was rejected; empty: none was
};

class Refresher {
 public:
  // `poll_seconds` 0: only hints.
  Refresher(ServingTables& tables, Metrics& metrics, double poll_seconds);
  Refresher(const Refresher&) = delete;
  Refresher& operator=(const Refresher&) = delete;
  ~Refresher();  // completes a check in progress, and the hints

  // Checks once on the thread, then calls `answer` there.
  void hint(std::function<void(const RefreshResult&)> answer);

  // Duration of the last switch to a newer version.
  double last_seconds() const { return last_seconds_; }

 private:
  void run();
  RefreshResult refresh();

  ServingTables& tables_;
  Metrics& metrics_;
  const double poll_seconds_;
  std::atomic<double> last_seconds_{0};
  std::string last_refused_;
  std::mutex mutex_;
  std::condition_variable is_wanted_;
  std::deque<std::function<void(const RefreshResult&)>> hints_;
  bool is_closed_ = false;
  std::thread thread_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_REFRESHER_H_
