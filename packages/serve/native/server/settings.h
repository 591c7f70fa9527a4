// The resolved configuration that `sparring serve` passes to this program.
//
// A file of lines: a key, then values, separated by tabs. Values are percent-encoded, so that they may
// contain any byte. sparring_serve.server.native_front_end writes it; both are of one release, so an
// unknown or a missing key is an error of the installation.
#ifndef SPARRING_SERVE_SERVER_SETTINGS_H_
#define SPARRING_SERVE_SERVER_SETTINGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparring::serve {

struct Settings {
  std::string library;    // path of libsparring_packed.so
  std::string release;    // name and release of the Python package, for messages
  std::string core_release;  // release of core, for ServerMetadata
  std::string log_level;  // error, info or debug

  std::string snapshots;  // folder of serving snapshots, without a slash at its end
  std::string pin;        // name of the only version to serve; empty: the newest
  bool verifies_all = true;
  int keep_versions = 2;
  double poll_seconds = 0;  // 0: only hints
  double warm_up_seconds = 0;

  std::string host;
  int port = 0;
  int metrics_port = -1;  // -1: none
  std::string metrics_token_file;  // empty: no token
  bool metrics_tls = false;        // with the certificate of the server
  double calls_per_second = 0;     // quota of a client; 0: none
  double ids_per_second = 0;
  int health_port = -1;   // -1: none
  int threads = 4;        // threads of large calls; the maximum number of calls is 16 per thread
  double drain_seconds = 10;
  std::string certificate_file;  // empty: plain text
  std::string key_file;
  std::string ca_file;     // empty: clients present no certificate
  std::string token_file;  // empty: no tokens
  std::vector<std::pair<std::string, int>> channel_options;

  int64_t max_ids = 0;
  int64_t max_tables = 0;
  int64_t max_bytes = 0;
  int64_t max_bytes_in_flight = 0;
  double max_deadline_seconds = 0;
  int64_t max_queries = 0;
  int64_t max_k = 0;
  double log_fraction = 0;
  int log_descriptor = -1;  // socket of the process that writes the log; -1: none

  int shard = 0;
  int num_shards = 1;
  int partition_begin = 0;
  int partition_end = 4096;
  std::string shard_map;  // encoded ShardMap

  std::map<std::string, std::string> initial_values;  // table → encoded InitialValues
  std::map<std::string, std::string> metric_help;     // name without prefix → description
  std::vector<std::string> bucket_bounds;             // upper bounds of buckets for seconds, as labels
};

// Throws std::runtime_error if the file cannot be read or was written by another release.
Settings read_settings(const std::string& path);
Settings parse_settings(std::string_view content);

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_SETTINGS_H_
