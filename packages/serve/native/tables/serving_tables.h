// The tables of a folder of serving snapshots: the kept versions, and the switch to newer ones.
//
// Readers take the current `Served`, an immutable description, and look up in its handle. A refresh
// replaces it. A lookup of the handle itself reads one version, as sparring_packed.h describes.
#ifndef SPARRING_SERVE_TABLES_SERVING_TABLES_H_
#define SPARRING_SERVE_TABLES_SERVING_TABLES_H_

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tables/packed_library.h"
#include "tables/recent_ids.h"

namespace sparring::serve {

struct Version {
  std::string hash;
  int64_t step;
  double published;     // seconds since 1970
  std::string encoded;  // as a Version message
};

struct TableShape {
  std::string name;
  int32_t number;  // in the library
  int32_t dim;
  int32_t dtype;       // of stored rows, SPARRING_PACKED_*
  int64_t row_bytes;   // of a stored row
  int64_t num_rows;    // an upper bound if there are several layers
  std::string initial; // encoded InitialValues
};

// Result of the warm-up of the newest version.
struct WarmUp {
  double seconds = -1;  // negative: there was none
  double num_ids = 0;
  double num_bytes = 0;
};

// State of the gate of the folder, as of the last refresh.
struct GateState {
  bool is_closed = false;
  bool is_pinned = false;
  std::string encoded;  // as a Gate message; empty: open without a pin
  std::string text;     // for the log
};

struct Served {
  PackedLibrary::Handle packed;
  std::vector<Version> versions;  // newest first
  std::vector<TableShape> tables;
  std::vector<std::string> names;  // of tables
  std::map<std::string, int, std::less<>> numbers;
  int num_layers = 0;
  double mapped_bytes = 0;
  std::string not_fresh;  // reason for which an older version is served; empty: the newest is
  WarmUp warm_up;
  GateState gate;

  bool has_version(std::string_view hash) const;
};

struct TablesOptions {
  std::string folder;
  std::string pin;
  bool verifies_all;
  int keep_versions;
  int partition_begin;
  int partition_end;
  double warm_up_seconds;
  std::map<std::string, std::string> initial_values;  // table → encoded InitialValues
};

class ServingTables {
 public:
  // Opens the newest intact version, or the pinned one. Throws PackedError if there is none.
  ServingTables(const PackedLibrary& library, TablesOptions options);

  const PackedLibrary& library() const { return library_; }
  std::shared_ptr<const Served> served() const { return served_.load(); }

  // Returns the Version message of a version that the handle keeps; empty if it does not. During a switch,
  // the handle may already keep a newer version than `served` lists, and no longer the oldest.
  std::string find_version(const Served& served, std::string_view hash) const;

  // Whether lookups call `note`.
  bool notes_ids() const { return options_.warm_up_seconds > 0 && !options_.verifies_all; }
  void note(int32_t table, const int64_t* ids, int64_t count) {
    recent_[static_cast<size_t>(table)].note(ids, count);
  }

  // Switches to the newest version; returns whether there was a newer one. Throws PackedError if it is
  // rejected. Not thread-safe: one thread refreshes.
  bool refresh();

 private:
  PackedLibrary::Handle open(const std::string& path, bool verifies_all) const;
  PackedLibrary::Handle open_older(const std::set<std::string>& names) const;
  PackedLibrary::Handle retry_newest();
  void check_same_tables(SparringPacked& newest) const;
  void remember(PackedLibrary::Handle packed, std::string not_fresh, WarmUp warm_up);
  GateState read_gate();
  void note_gate();
  WarmUp warm(const Served& current);

  const PackedLibrary& library_;
  const TablesOptions options_;
  std::atomic<std::shared_ptr<const Served>> served_;
  std::vector<RecentIds> recent_;  // by number of the table

  // The newest version could not be opened when the server started; these describe the last attempt.
  bool is_behind_ = false;
  std::string refused_;
  std::set<std::string> tried_names_;
  std::chrono::steady_clock::time_point tried_;

  std::string damaged_gate_;  // reason for which gate.json is ignored
  std::set<std::string> warmed_names_;  // content of the folder at the last warm-up
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_TABLES_SERVING_TABLES_H_
