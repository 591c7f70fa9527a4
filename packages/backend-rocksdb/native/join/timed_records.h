// Records of variable size by key and by time: the open impressions of a join. A folder contains one
// RocksDB database, which belongs to one process.
//
// The folder
//   column family "default"  key -> time        8 bytes, ordered as `encode_time` describes
//   column family "records"  time, key -> value
//
// Records are inserted and removed nearly in the order of their times. Sorted by time, files of records
// rarely overlap, so compaction moves most of them instead of rewriting them, and a scan is sequential.
//
// Writes are not logged: after a crash, the caller continues from a checkpoint.
#ifndef SPARRING_ROCKSDB_JOIN_TIMED_RECORDS_H_
#define SPARRING_ROCKSDB_JOIN_TIMED_RECORDS_H_

#include <rocksdb/db.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sparring::flash {

struct TimedRecord {
  std::string key;
  double time = 0;
  std::string value;
};

// Not safe for concurrent use.
class TimedRecords {
 public:
  // Opens the database in `folder`, and creates it if it does not exist. Throws StatusError:
  // SPARRING_IO (another process has opened it, no space, ...), SPARRING_CORRUPT,
  // SPARRING_INVALID_ARGUMENT (unknown compression).
  TimedRecords(const std::string& folder, uint64_t block_cache_bytes, uint64_t write_buffer_bytes,
               const std::string& compression);
  ~TimedRecords();
  TimedRecords(const TimedRecords&) = delete;
  TimedRecords& operator=(const TimedRecords&) = delete;

  // The record of each key, or nothing.
  std::vector<std::optional<TimedRecord>> get(const std::vector<std::string>& keys) const;

  // Removes and then adds records, as one change.
  // REQUIRES: `removed` contains the present time of each key that is removed or replaced.
  void write(const std::vector<std::pair<std::string, double>>& removed,
             const std::vector<TimedRecord>& added);

  // The first records with a time after `after` and of at most `until`, in the order of times, then of
  // keys. Removed records after `after` make it slower, until they are compacted.
  std::vector<TimedRecord> scan(double after, double until, size_t max_records) const;

  // Copies all records to a new folder, by hard links if the file system is the same.
  void checkpoint(const std::string& folder) const;

 private:
  std::string asked(const char* what) const { return std::string(what) + " in " + folder_; }

  const std::string folder_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_JOIN_TIMED_RECORDS_H_
