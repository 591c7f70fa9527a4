// C++ wrapper of the struct of storage_abi.h: sets the sizes of arguments and the executor,
// and converts errors to exceptions.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sparring/storage_abi.h"

namespace sparring::abi {

// An error of a storage, or of a reader that rejects a struct.
class StorageError : public std::runtime_error {
 public:
  StorageError(SparringStatus status, const std::string& message)
      : std::runtime_error(message), status(status) {}
  const SparringStatus status;
};

// The major version of the struct is not supported.
class VersionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Rows that an upsert or an eviction removed, packed.
struct EvictedRows {
  std::vector<int64_t> keys;     // (n)
  std::vector<std::byte> rows;   // (n, row_bytes)
  std::vector<uint64_t> scores;  // (n)
};

// A view of a SparringStorage. The creator of the handle keeps the struct alive.
// Threads: as in storage_abi.h.
class StorageHandle {
 public:
  // Throws VersionError for a struct of another major version, and
  // StorageError(SPARRING_INTERNAL) for a struct without a required callback.
  explicit StorageHandle(SparringStorage* storage);

  void find(SparringFind& arguments) const;
  // `evicted` NULL: evicted rows are dropped.
  void upsert(SparringUpsert& arguments, EvictedRows* evicted) const;
  int64_t erase(int64_t count, const int64_t* keys) const;
  void touch(SparringTouch& arguments) const;
  int64_t evict(int64_t wanted, EvictedRows* evicted) const;
  void scan(SparringScan& arguments) const;

  // If the storage does not support visits, finds the rows, and the visitor receives the
  // copies. Keys may repeat.
  void visit(SparringVisit& arguments) const;
  // If the storage does not support updates, finds rows, changes copies, and upserts them.
  // `evicted` NULL: evicted rows are dropped.
  void update(SparringUpdate& arguments, EvictedRows* evicted) const;

  SparringStat stat() const;
  void flush() const;
  void clear() const;
  void set_option(const std::string& name, const std::string& value) const;

  const char* distribution() const { return storage_->distribution; }
  SparringVersion version() const { return storage_->version; }
  bool offers_touch() const;
  bool offers_evict() const;
  bool offers_visit() const;
  bool offers_update() const;
  uint64_t row_bytes() const { return row_bytes_; }
  // Whether visits return row handles; see SparringVisit.
  bool keeps_handles() const { return keeps_handles_; }

 private:
  // Returns the callback `member`, or NULL if it is beyond the bytes of the struct.
  template <typename Callback>
  Callback optional(Callback SparringStorage::*member) const;
  void check(SparringStatus status, SparringCall& call,
             const char* operation) const;
  void visit_copies(SparringVisit& arguments) const;
  void update_copies(SparringUpdate& arguments, EvictedRows* evicted) const;

  SparringStorage* storage_;
  uint64_t row_bytes_ = 0;
  bool keeps_handles_ = false;
};

}  // namespace sparring::abi
