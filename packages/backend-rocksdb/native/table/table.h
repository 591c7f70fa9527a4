// One table of a database: rows by key, in a column family of their own.
//
// Reading. Keys are sorted, then looked up by MultiGet in groups of neighbors,
// which share blocks; the groups are dealt to the threads that the caller lends.
// Rows are copied from where RocksDB pins them straight to their places.
//
// Writing. Rows go in batches of some megabytes, in the order of keys, each batch
// with the number of rows that the table has after it: the number is exact after
// any crash. Whether a key is new is known from memory as a rule (known_keys.h),
// otherwise it is looked up.
//
// Threads: as storage_abi.h says. `close` may be called concurrently with any call: it waits
// for the calls under way, and later ones find the table closed.
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
  // Throws StatusError, as Database::take.
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
    char* rows;  // (n, stride) bytes; NULL: rows are not wanted
    uint64_t stride;
    SparringColumns columns;
    uint8_t* found;  // (n)
  };

  void read(const Codes& codes, const SparringExecutor* executor, const Destination& to) const;
  struct Group;  // what one MultiGet works with; used again for the next one
  void read_group(const PlacedCode* codes, size_t count, Group& group, const Destination& to) const;
  // is_new[i]: whether codes[i] has no row yet.
  std::vector<uint8_t> find_new(const Codes& codes, const SparringExecutor* executor) const;
  // Writes rows[position * stride] for each of codes; is_new as from find_new.
  void write(const Codes& codes, const std::vector<uint8_t>& is_new, const char* rows,
             uint64_t stride);
  // Writes the batch with the new number of rows; `remember` runs when it is written.
  void commit(rocksdb::WriteBatch& batch, int64_t num_rows, const std::function<void()>& remember);
  // As check() of status.h. Called for every row, so words are made only where they are needed.
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
