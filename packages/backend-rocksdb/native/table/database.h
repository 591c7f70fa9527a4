// One RocksDB database: a folder with any number of tables, each in a separate
// column family. Within a process there is one Database per folder, shared by the
// tables that are open in it; the last one closes it.
//
// The folder
//   column family "default"       the catalog
//     "format"        -> "sparring-rocksdb 1"
//     "label/" table  -> the meaning of the bytes of a row (TableConfig.row_label)
//     "rows/" table   -> the number of its rows, 8 bytes, little-endian
//     "note/" name "/" table -> a text that core stores with it, such as the snapshot being loaded
//   column family "table/" table  the rows: key (see key_order.h) -> row
//
// Invariants
//   1. "rows/" is written in the same batch as the rows that it counts, so it is
//      exact after any crash.
//   2. A table has a label before its first row, and the label never changes.
#ifndef SPARRING_ROCKSDB_TABLE_DATABASE_H_
#define SPARRING_ROCKSDB_TABLE_DATABASE_H_

#include <rocksdb/db.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sparring::flash {

// The error message in a forked child.
inline constexpr const char* kOfParent =
    " was opened before this process was forked, and belongs to the parent process; use it there, or "
    "start this process with spawn";

struct DatabaseOptions {
  uint64_t block_cache_bytes = 256 << 20;
  uint64_t write_buffer_bytes = 64 << 20;
  uint64_t block_bytes = 4096;
  double bloom_bits_per_key = 10;  // 0: no filters
  std::string compression = "none";
  bool direct_io = false;
  uint64_t rate_limit_bytes_per_second = 0;  // 0: unlimited
  int max_open_files = -1;                   // -1: unlimited
  int background_threads = 2;
  std::string recovery = "strict";  // or "point_in_time"
  bool secondary = false;  // reads the writes of another process, and writes nothing

  friend bool operator==(const DatabaseOptions&, const DatabaseOptions&) = default;
  // The options that differ, for example "block_cache_bytes 1 and 2, …".
  std::string difference(const DatabaseOptions& other) const;
};

class Database {
 public:
  // Returns the process's database in `folder`, and opens it if necessary; it stays open while
  // there is a pointer to it. Creates the folder. Throws StatusError:
  // SPARRING_INVALID_ARGUMENT if it is open with other options, or contains other files;
  // SPARRING_IO (another process has opened it, including the parent of a fork; no space, …);
  // SPARRING_CORRUPT.
  // As a secondary it creates nothing, and another process may have opened the folder.
  static std::shared_ptr<Database> open(const std::string& folder, const DatabaseOptions& options);

  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Whether this is a child process that was forked later: the threads of RocksDB do not exist in it,
  // its locks may be held forever, and its writes would damage the files of the parent. So it is not used.
  bool is_of_parent() const { return owner_ != ::getpid(); }

  bool is_secondary() const { return options_.secondary; }
  // For a secondary: applies the writes that the other process made before this call. Otherwise no-op.
  // Throws StatusError: SPARRING_IO, also if files disappeared repeatedly during the call.
  void catch_up() const;
  // Throws StatusError (SPARRING_UNSUPPORTED) if it is a secondary.
  void check_writable(const char* what) const;

  const std::string& folder() const { return folder_; }
  rocksdb::DB& db() const { return *db_; }
  rocksdb::ColumnFamilyHandle* catalogue() const { return db_->DefaultColumnFamily(); }

  // The label of the rows of a table; nothing if the table does not exist.
  std::optional<std::string> label(const std::string& table) const;
  std::vector<std::string> tables() const;

  // A short text stored with a table. Writes to one database stay in order, so later writes exist
  // only if the note exists. An empty optional removes the note.
  // REQUIRES: no "/" in `name`.
  std::optional<std::string> read_note(const std::string& table, const std::string& name) const;
  void write_note(const std::string& table, const std::string& name,
                  const std::optional<std::string>& text);

  // Opens a table for one user, and creates it if it does not exist.
  // Throws StatusError: SPARRING_INVALID_ARGUMENT if it has a different label, or is already
  // open.
  rocksdb::ColumnFamilyHandle* take(const std::string& table, const std::string& label);
  void give_back(const std::string& table);
  // The column family of a table that was taken before.
  rocksdb::ColumnFamilyHandle* family(const std::string& table) const;
  int64_t read_num_rows(const std::string& table) const;
  static std::string rows_key(const std::string& table) { return "rows/" + table; }
  static std::string encode_num_rows(int64_t num_rows);

  // Like DB::Write. After an error RocksDB rejects writes until it is resumed: the next write
  // resumes it, because there may be free space again.
  rocksdb::Status write(const rocksdb::WriteOptions& options, rocksdb::WriteBatch& batch);

  // Like DB::FlushWAL with sync, which must not be called while the last write has failed: RocksDB
  // would end the process if the error was in its log.
  rocksdb::Status sync_log();

  // Copies all tables in their present state to a new folder. Immutable files are hard-linked if
  // the file system is the same.
  // The folder appears atomically.
  void checkpoint(const std::string& folder) const;

  // Rewrites the files of a table without the bytes of erased rows. The list of files, which contains
  // the first and last key of each, is rewritten when the folder is opened the next time.
  void purge(const std::string& table) const;

  // Bytes of caches, write buffers and indexes for `family`; shared memory is divided among
  // the tables.
  uint64_t memory_bytes(rocksdb::ColumnFamilyHandle* family) const;

 private:
  Database(std::string folder, const DatabaseOptions& options);

  void check_format();
  void close() noexcept;
  // Returns OK if the last write did not fail, or if RocksDB accepts writes again; Busy if RocksDB still
  // checks whether it can.
  rocksdb::Status resume(std::chrono::milliseconds most_waiting);
  std::string asked(const std::string& what) const { return what + " in " + folder_; }

  const std::string folder_;
  const DatabaseOptions options_;
  const pid_t owner_ = ::getpid();
  std::shared_ptr<rocksdb::Cache> cache_;
  rocksdb::ColumnFamilyOptions family_options_;
  std::unique_ptr<rocksdb::DB> db_;
  std::atomic<bool> has_failed_{false};  // whether a write failed since `resume`
  mutable std::mutex catching_up_;
  mutable std::mutex mutex_;  // protects the following members
  std::map<std::string, rocksdb::ColumnFamilyHandle*> families_;
  std::set<std::string> taken_;
};

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_DATABASE_H_
