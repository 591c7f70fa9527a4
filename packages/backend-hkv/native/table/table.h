// The table: an index, the rows, a policy, and the lock around them. Its
// methods are the callbacks of storage_abi.h, which says what each promises;
// here they throw border::StatusError or std::bad_alloc instead of returning a
// status. storage_border.h calls them, and checks arguments before.
//
// Threads: everything may be called from any thread at any time. Readers run
// concurrently; a writer runs alone, and is not starved by readers. Both
// spread large calls over call.executor while they hold the lock, so the
// executor must not run other work on the waiting thread that enters the same
// table, nor may an eviction sink.
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
  // Runs `show` under the readers' lock. A handle is the address of a row.
  void visit(SparringVisit& call) const;
  void scan(SparringScan& call) const;
  void stat(SparringStat& call) const;

  void upsert(SparringUpsert& call);
  // Runs `admit` and `change` under the writers' lock.
  void update(SparringUpdate& call);
  void erase(SparringErase& call);
  void clear();
  // REQUIRES: keeps_scores().
  void touch(SparringTouch& call);
  void evict(SparringEvict& call);
  // `epoch`: a whole number. `scores`: `given` while rows of a snapshot are put back with
  // their scores, else `policy`. `calls`: how many calls these rows have seen.
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
  // Handles given before are void: a row leaves.
  void void_handles();

  // What upsert and update have in common, in the order of these. Rows and scores
  // of known keys are written on all threads.
  struct Located {
    std::vector<char*> rows;       // (n) row of each key, or NULL
    std::vector<int64_t> missing;  // positions of NULL, ascending
  };
  Located locate(const SparringExecutor* executor, const int64_t* keys, int64_t count) const;
  // Looks only for the keys without a handle, where handles are valid.
  Located locate(const SparringUpdate& call) const;
  static void note_missing(Located& located);
  // All of located.missing find room, or nothing happens.
  template <class Call>
  void insert_missing(const Call& call, Located& located);
  void check_room(int64_t count, uint64_t num_missing, const char* operation) const;

  void write_rows(const SparringUpsert& call, const Located& located) const;
  void upsert_growing(SparringUpsert& call, Located& located);
  // Rows may be evicted, those of this call too. Known keys are written first, so
  // that no row is evicted with a value that this call replaces.
  void upsert_evicting(SparringUpsert& call, const Located& located);

  static void keep_admitted(const SparringUpdate& call, Located& located);
  // Those that have a place: of located.missing, what was inserted.
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
