// Answers requests from the tables of this server: takes request bytes, returns reply bytes or throws
// StatusError with one of the status codes listed in lookup.proto. All methods are thread-safe.
#ifndef SPARRING_SERVE_SERVER_LOOKUP_SERVICE_H_
#define SPARRING_SERVE_SERVER_LOOKUP_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/limits.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/settings.h"
#include "tables/serving_tables.h"

namespace sparring::serve {

// Ids of one table of a request.
struct TableIds {
  std::string_view table;
  std::string_view ids;  // int64, 8 bytes each, not aligned

  int64_t count() const { return static_cast<int64_t>(ids.size() / sizeof(int64_t)); }
};

// A reply, and the bytes of its call, which are in flight until the reply has been sent.
struct Reply {
  grpc::ByteBuffer message;
  Admission::Admitted admitted;
};

class LookupService {
 public:
  using Clock = std::chrono::steady_clock;

  LookupService(const Settings& settings, ServingTables& tables, Metrics& metrics)
      : settings_(settings),
        tables_(tables),
        metrics_(metrics),
        admission_(settings.max_bytes_in_flight),
        request_log_(settings.log_descriptor, settings.log_fraction, metrics.logged) {}

  const Settings& settings() const { return settings_; }
  ServingTables& tables() { return tables_; }
  Metrics& metrics() { return metrics_; }
  Admission& admission() { return admission_; }
  RequestLog& request_log() { return request_log_; }
  int64_t bytes_in_flight() const { return admission_.bytes_in_flight(); }

  bool is_ready() const { return !is_draining_; }
  void start_draining() { is_draining_ = true; }

  // Answer the message of their name in lookup.proto. `remaining_seconds` is the time until the caller's
  // deadline; `begin` is the time at which the message arrived.
  Reply pull(std::string_view content, double remaining_seconds, Clock::time_point begin);
  Reply scan(std::string_view content, double remaining_seconds);
  Reply read_model(std::string_view content, double remaining_seconds);
  std::string describe(std::string_view content);

  // Throw StatusError: the deadline is missing, too long or has passed; the request is too large.
  void check_deadline(double remaining_seconds) const;
  void check_request_bytes(std::string_view content) const;
  void check_reply_bytes(int64_t num_bytes) const;

  // Checks the tables and ids of a request, and returns the shapes of its tables.
  std::vector<const TableShape*> check_tables(const Served& served,
                                              const std::vector<TableIds>& asked) const;

  // Seconds since a version was published.
  static double age_of(double published);

  // Converts an error of a lookup or scan in a version; an empty `version` is the newest.
  [[noreturn]] void refuse(const Served& served, const PackedError& error, std::string_view version) const;

 private:
  // Like `refuse`, also if the caller sent an argument that the library rejects.
  [[noreturn]] void refuse_argument(const Served& served, const PackedError& error,
                                    const std::string& version) const;
  void check_partitions(const std::vector<TableIds>& asked) const;

  const Settings& settings_;
  ServingTables& tables_;
  Metrics& metrics_;
  Admission admission_;
  RequestLog request_log_;
  std::atomic<bool> is_draining_{false};
};

// Rejects bytes that are not whole ids.
void check_ids(std::string_view ids);

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_LOOKUP_SERVICE_H_
