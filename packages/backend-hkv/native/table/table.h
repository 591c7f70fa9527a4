// The table: an index, the rows, a policy, and the lock that protects them. Its
// methods are the callbacks of storage_abi.h, which documents them; here they
// throw border::StatusError or std::bad_alloc instead of returning a status.
// storage_border.h validates arguments and calls them.
//
// Threads: all methods are thread-safe. Readers run concurrently; a writer runs
// exclusively and is not starved by readers. Both distribute large calls over
// call.executor while they hold the lock. Therefore the executor must not run
// other work that uses the same table on the waiting thread, nor may an eviction
// sink.
#ifndef SPARRING_HKV_TABLE_TABLE_H_
#define SPARRING_HKV_TABLE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "eviction.h"
#include "index.h"
#include "kernels.h"
#include "layout.h"
#include "policy.h"
#include "pool.h"
#include "reader_writer_lock.h"
#include "sparring/storage_abi.h"

namespace sparring::hkv {

class Table {
 public:
  static constexpr bool kKeepsHandles = true;
  static constexpr const char* kOutOfMemory =
      "the system has no more memory for this table; the table is unchanged";

  // `kernels`: one of available_kernels(). Throws StatusError, std::bad_alloc.
  explicit Table(const TableOptions& options,
                 const Kernels* kernels = available_kernels().front());

  uint64_t row_bytes() const { return options_.row_bytes; }
  bool keeps_scores() const { return options_.policy != PolicyKind::kNone; }
  bool evicts() const { return layout_.is_bounded && keeps_scores(); }

  void find(SparringFind& call) const;
  // Calls `show` under the readers' lock. A handle is the address of a row.
  void visit(SparringVisit& call) const;
  void scan(SparringScan& call) const;
  void stat(SparringStat& call) const;

  void upsert(SparringUpsert& call);
  // Calls `admit` and `change` under the writers' lock.
  void update(SparringUpdate& call);
  void erase(SparringErase& call);
  void clear();
  // REQUIRES: keeps_scores().
  void touch(SparringTouch& call);
  void evict(SparringEvict& call);
  // `epoch`: an integer. `scores`: `given` while the rows of a snapshot are loaded with their
  // scores, else `policy`. `calls`: the number of calls that these rows have seen.
  void set_option(const char* name, const char* value);

 private:
  struct Contents {
    Contents(const TableOptions& options, const Layout& layout);

    Index index;
    Pool rows;
  };

  bool is_large(uint64_t count, uint64_t row_bytes) const;
  void note_share(const uint8_t* found, int64_t count, bool was_mixed) const;
  void check_scores(const uint64_t* scores) const;
  void update_scores(const SparringExecutor* executor, const int64_t* keys,
                     const uint64_t* scores, int64_t count,
                     const std::vector<int64_t>* skipped) const;

  int32_t show_handles(const SparringVisit& call) const;
  // Invalidates all handles, because a row is removed.
  void void_handles();

  // The common parts of upsert and update, in this order. Rows and scores of known
  // keys are written on all threads.
  struct Located {
    std::vector<char*> rows;       // (n) row of each key, or NULL
    std::vector<int64_t> missing;  // positions of NULL, ascending
  };
  Located locate(const SparringExecutor* executor, const int64_t* keys, int64_t count) const;
  // If handles are valid, looks up only the keys without a handle.
  Located locate(const SparringUpdate& call) const;
  static void note_missing(Located& located);
  // Inserts all of located.missing, or fails without changing anything.
  template <class Call>
  void insert_missing(const Call& call, Located& located);
  void check_room(int64_t count, uint64_t num_missing, const char* operation) const;

  void write_rows(const SparringUpsert& call, const Located& located) const;
  void upsert_growing(SparringUpsert& call, Located& located);
  // May evict rows, also rows of this call. Known keys are written first, so
  // that an evicted row never has a value that this call replaces.
  void upsert_evicting(SparringUpsert& call, const Located& located);

  static void keep_admitted(const SparringUpdate& call, Located& located);
  // Changes the rows of keys that exist, including those of located.missing that were inserted.
  void change_rows(const SparringUpdate& call, const Located& located) const;
  void update_growing(SparringUpdate& call, Located& located);
  void update_evicting(SparringUpdate& call, const Located& located);

  void insert_or_evict(int64_t key, const char* row, const uint64_t* score,
                       EvictionBuffer& evicted);
  Place first_to_leave_near(uint64_t hash);

  TableOptions options_;
  Layout layout_;
  const Kernels* kernels_;
  mutable ReaderWriterLock lock_;
  mutable std::atomic<bool> is_mixed_{false};  // see RowOutput
  Policy policy_;
  std::unique_ptr<Contents> contents_;
  uint64_t generation_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_TABLE_H_
