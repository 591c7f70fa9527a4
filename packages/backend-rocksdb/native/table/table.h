// One table of a database: rows by key, in a separate column family.
//
// Reading. Keys are sorted and looked up by MultiGet in groups of neighbors, which share
// blocks. The groups are distributed to the threads that the caller provides. Rows are
// copied from the memory that RocksDB pins directly to their destinations.
//
// Writing. Rows are written in batches of some megabytes, in the order of keys. Each
// batch contains the number of rows of the table after it, so the number is exact after
// any crash. Usually it is known from memory whether a key is new (known_keys.h);
// otherwise it is looked up.
//
// Threads: see storage_abi.h. `close` may be called concurrently with any call: it waits
// for calls in progress, and for later ones the table is closed.
#ifndef SPARRING_ROCKSDB_TABLE_TABLE_H_
#define SPARRING_ROCKSDB_TABLE_TABLE_H_

#include <rocksdb/db.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "database.h"
#include "key_order.h"
#include "known_keys.h"
#include "sparring/storage_abi.h"

namespace sparring::flash {

struct TableOptions {
  std::string name;
  std::string label;
  uint64_t row_bytes = 0;
  bool sync_writes = false;
  uint64_t known_keys_bytes = 64 << 20;
};

class Table {
 public:
  // Throws StatusError, like Database::take.
  Table(std::shared_ptr<Database> database, const TableOptions& options);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Keeps the table open for one call. Throws StatusError (SPARRING_CLOSED).
  [[nodiscard]] std::shared_lock<std::shared_mutex> use();
  void close();

  // REQUIRES for all below: the caller holds use().
  uint64_t row_bytes() const { return options_.row_bytes; }
  void find(SparringFind& call);
  void upsert(SparringUpsert& call);
  void update(SparringUpdate& call);
  void erase(SparringErase& call);
  void scan(SparringScan& call);
  void stat(SparringStat& call);
  void flush();
  void clear();
  const Database& database() const { return *database_; }

 private:
  using Codes = std::vector<PlacedCode>;
  struct Destination {
    char* rows;  // (n, stride) bytes; NULL: rows are not requested
    uint64_t stride;
    SparringColumns columns;
    uint8_t* found;  // (n)
  };

  void read(const Codes& codes, const SparringExecutor* executor, const Destination& to) const;
  struct Group;  // the data of one MultiGet, which are reused
  void read_group(const PlacedCode* codes, size_t count, Group& group, const Destination& to) const;
  // is_new[i]: whether codes[i] has no row.
  std::vector<uint8_t> find_new(const Codes& codes, const SparringExecutor* executor) const;
  // Writes rows[position * stride] for each of codes; is_new as from find_new.
  void write(const Codes& codes, const std::vector<uint8_t>& is_new, const char* rows,
             uint64_t stride);
  // Writes the batch with the new number of rows; calls `remember` after it is written.
  void commit(rocksdb::WriteBatch& batch, int64_t num_rows, const std::function<void()>& remember);
  // Like check() of status.h. Called for every row, so it creates messages only for errors.
  void check_done(const char* what, const rocksdb::Status& status) const;
  std::string asked(const char* what) const;

  const TableOptions options_;
  const pid_t owner_ = ::getpid();
  std::shared_ptr<Database> database_;
  rocksdb::ColumnFamilyHandle* family_;
  std::atomic<int64_t> num_rows_;
  KnownKeys known_;
  std::shared_mutex in_use_;
  std::atomic<bool> is_closed_{false};
};

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_TABLE_H_
