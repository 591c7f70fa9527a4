// Metrics of the server, with the names and the text format of the server in Python.
#ifndef SPARRING_SERVE_SERVER_METRICS_H_
#define SPARRING_SERVE_SERVER_METRICS_H_

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/quotas.h"
#include "wire/status_error.h"

namespace sparring::serve {

// Observed durations in buckets.
class Histogram {
 public:
  explicit Histogram(const std::vector<std::string>& bounds);

  void observe(double seconds);
  // Appends the lines of the samples.
  void write(const std::string& name, std::string& out) const;

 private:
  std::vector<std::string> labels_;
  std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> counts_;  // per bucket, not cumulated; the last is +Inf
  std::atomic<double> sum_{0};
};

// Counts calls for rows or for recommendations. Calls of existing tables are counted without a lock.
class CallCounts {
 public:
  // `tables` are the names of the tables; the empty name counts calls of all others.
  CallCounts(const std::vector<std::string>& tables, const std::vector<std::string>& bounds);

  // `table` is a number of the table, or -1.
  void note(int table, StatusCode code) {
    counts_[static_cast<size_t>(table + 1)][static_cast<size_t>(code)].fetch_add(
        1, std::memory_order_relaxed);
  }
  void observe(double seconds) { seconds_.observe(seconds); }
  void write_counts(const std::string& name, std::string& out) const;
  void write_seconds(const std::string& name, std::string& out) const { seconds_.write(name, out); }

 private:
  static constexpr size_t kCodes = 17;

  std::vector<std::string> tables_;
  std::vector<std::array<std::atomic<int64_t>, kCodes>> counts_;
  Histogram seconds_;
};

// Numbers by label. Thread-safe.
class LabelledCounts {
 public:
  void add(const std::string& label) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++counts_[label];
  }
  void write(const std::string& name, const std::string& label, std::string& out) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

// All methods are thread-safe.
class Metrics {
 public:
  // `help` maps the name of a metric, without its prefix, to its description.
  Metrics(std::map<std::string, std::string> help, const std::vector<std::string>& bounds,
          const std::vector<std::string>& tables);

  CallCounts pulls;
  CallCounts recommends;
  std::atomic<int64_t> queries{0};
  std::atomic<int64_t> ids{0};
  std::atomic<int64_t> found{0};
  LabelledCounts refreshes;  // by result: taken, unchanged, refused
  LabelledCounts rejected;   // by reason
  LabelledCounts logged;     // by result: queued, dropped

  // Sets the function that returns the gauges; before the first call of `text`.
  using Gauges = std::vector<std::pair<std::string, double>>;
  void set_gauges(std::function<Gauges()> read) { read_gauges_ = std::move(read); }

  // Sets the function that returns the use of clients with a quota; before the first call of `text`.
  void set_clients(std::function<std::vector<ClientUse>()> read) { read_clients_ = std::move(read); }

  // Returns all metrics in the text format of Prometheus.
  std::string text() const;

 private:
  void head(const std::string& name, const char* kind, std::string& out) const;
  void total(const std::string& name, int64_t value, std::string& out) const;

  std::map<std::string, std::string> help_;
  std::function<Gauges()> read_gauges_;
  std::function<std::vector<ClientUse>()> read_clients_ = [] { return std::vector<ClientUse>(); };
};

// Returns the result of `answer`. Calls `count` with the status of the call, also if `answer` throws, and
// counts the reason of a StatusError.
template <class Answer, class Count>
auto counted(Metrics& metrics, const Answer& answer, const Count& count) {
  try {
    auto reply = answer();
    count(StatusCode::OK);
    return reply;
  } catch (const StatusError& error) {
    metrics.rejected.add(error.reason);
    count(error.code);
    throw;
  } catch (...) {
    count(StatusCode::INTERNAL);
    throw;
  }
}

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_METRICS_H_
