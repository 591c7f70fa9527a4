// One RocksDB database: a folder that holds any number of tables, each in a
// column family of its own. Within a process there is one Database for a folder,
// shared by the tables that are open in it; the last one to leave closes it.
//
// The folder
//   column family "default"       the catalogue
//     "format"        -> "sparring-rocksdb 1"
//     "label/" table  -> what the bytes of a row mean (TableConfig.row_label)
//     "rows/" table   -> the number of its rows, 8 bytes, little-endian
//     "note/" name "/" table -> a text that core keeps with it, as what is being loaded
//   column family "table/" table  the rows: key (see key_order.h) -> row
//
// Invariants
//   1. "rows/" is written in the same batch as the rows that it counts, so after
//      any crash it counts exactly the rows that are there.
//   2. A table has a label from its first row on, and the label never changes.
#ifndef SPARRING_ROCKSDB_TABLE_DATABASE_H_
#define SPARRING_ROCKSDB_TABLE_DATABASE_H_

#include <rocksdb/db.h>
#include <unistd.h>

#include <atomic>
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

// What is said in a forked child.
inline constexpr const char* kOfParent =
    " was opened before this process was forked, and is its parent's; use it there, or start this "
    "process by spawn";

struct DatabaseOptions {
  uint64_t block_cache_bytes = 256 << 20;
  uint64_t write_buffer_bytes = 64 << 20;
  uint64_t block_bytes = 4096;
  double bloom_bits_per_key = 10;  // 0: no filters
  std::string compression = "none";
  bool direct_io = false;
  uint64_t rate_limit_bytes_per_second = 0;  // 0: no limit
  int max_open_files = -1;                   // -1: all of them
  int background_threads = 2;
  std::string recovery = "strict";  // or "point_in_time"
  bool secondary = false;  // reads what another process writes, and writes nothing

  friend bool operator==(const DatabaseOptions&, const DatabaseOptions&) = default;
  // What differs, as "block_cache_bytes 1 and 2, …".
  std::string difference(const DatabaseOptions& other) const;
};

class Database {
 public:
  // The process's database in `folder`, opened if it was not; it stays open until
  // the last pointer to it goes. Makes the folder. Throws StatusError:
  // SPARRING_INVALID_ARGUMENT where it is open with other options, or holds
  // something else; SPARRING_IO (another process has it open, also one that forked
  // this one; no space, …), SPARRING_CORRUPT.
  // As a secondary it makes nothing, and another process may have the folder open.
  static std::shared_ptr<Database> open(const std::string& folder, const DatabaseOptions& options);

  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // This is a child that was forked since: threads of RocksDB are not in it, its locks may be held
  // for ever, and what it wrote would spoil what the parent writes. So it is left as it is.
  bool is_of_parent() const { return owner_ != ::getpid(); }

  bool is_secondary() const { return options_.secondary; }
  // Of a secondary: takes over what the other process wrote before this was called. Otherwise nothing.
  // Throws StatusError: SPARRING_IO, also where files went away meanwhile, time and again.
  void catch_up() const;
  // Throws StatusError (SPARRING_UNSUPPORTED) where it is a secondary.
  void check_writable(const char* what) const;

  const std::string& folder() const { return folder_; }
  rocksdb::DB& db() const { return *db_; }
  rocksdb::ColumnFamilyHandle* catalogue() const { return db_->DefaultColumnFamily(); }

  // What the rows of a table are; nothing where there is no such table.
  std::optional<std::string> label(const std::string& table) const;
  std::vector<std::string> tables() const;

  // A short text kept with a table. Writes of one database are kept in their order,
  // so what comes after a note is there only where the note is. Nothing: forgets it.
  // REQUIRES: no "/" in `name`.
  std::optional<std::string> read_note(const std::string& table, const std::string& name) const;
  void write_note(const std::string& table, const std::string& name,
                  const std::optional<std::string>& text);

  // Takes a table for one user, making it if it is missing.
  // Throws StatusError: SPARRING_INVALID_ARGUMENT where it has another label, or
  // is taken.
  rocksdb::ColumnFamilyHandle* take(const std::string& table, const std::string& label);
  void give_back(const std::string& table);
  // Of a table that was taken before.
  rocksdb::ColumnFamilyHandle* family(const std::string& table) const;
  int64_t read_num_rows(const std::string& table) const;
  static std::string rows_key(const std::string& table) { return "rows/" + table; }
  static std::string encode_num_rows(int64_t num_rows);

  // As DB::Write. After an error RocksDB takes no writes until it is told to go on:
  // the next write tells it, as there may be room again.
  rocksdb::Status write(const rocksdb::WriteOptions& options, rocksdb::WriteBatch& batch);

  // A copy of all tables as they are now, in a new folder: files that never
  // change again are linked, not copied, where the file system is the same one.
  // The folder appears when it is complete, or not at all.
  void checkpoint(const std::string& folder) const;

  // Rewrites the files of a table, so that none has bytes of rows that were erased. The list of
  // files, which names the first and last key of each, is rewritten when the folder is opened next.
  void purge(const std::string& table) const;

  // Bytes held by caches, write buffers and indexes for `family`; what all
  // tables share is counted in parts.
  uint64_t memory_bytes(rocksdb::ColumnFamilyHandle* family) const;

 private:
  Database(std::string folder, const DatabaseOptions& options);

  void check_format();
  void close() noexcept;
  std::string asked(const std::string& what) const { return what + " in " + folder_; }

  const std::string folder_;
  const DatabaseOptions options_;
  const pid_t owner_ = ::getpid();
  std::shared_ptr<rocksdb::Cache> cache_;
  rocksdb::ColumnFamilyOptions family_options_;
  std::unique_ptr<rocksdb::DB> db_;
  std::atomic<bool> has_failed_{false};  // the last write did
  mutable std::mutex catching_up_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, rocksdb::ColumnFamilyHandle*> families_;
  std::set<std::string> taken_;
};

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_DATABASE_H_
