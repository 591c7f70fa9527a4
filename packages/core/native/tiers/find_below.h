// How a find of a stack goes through tiers whose rows lie in memory.
//
//   keys ── the first tier's own find ──► rows
//        │
//   missing: places of keys that no tier above has
//        │ filters: surely not there ──► stays missing
//        ▼
//   the tier's own find, some keys at a time
//        │                      while these rows are in the near cache
//        ├──► rows of the caller, in his order
//        └──► whole rows, contiguous, for a caller that stages them
//
// All steps are taken for some keys at a time on each thread, so keys and rows that one step has
// written are in the cache for the next.
#ifndef SPARRING_TIERS_FIND_BELOW_H_
#define SPARRING_TIERS_FIND_BELOW_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "abi/storage_handle.h"
#include "kernels/blocked_bloom.h"
#include "sparring/storage_abi.h"

namespace sparring::tiers {

// What a find was asked for; rows are filled in from tier after tier.
struct Asked {
  const int64_t* keys;      // (n) int64
  SparringColumns columns;  // bytes of each row
  char* rows;               // out (n, row_stride) bytes; other rows are left alone
  uint64_t row_stride;
  uint8_t* found;  // out (n): set to 1 where the tier has the key
};

// Hit history of the finds of a tier, in any order; threads update it concurrently.
struct History {
  // Keys in a row that the tier had, counted up to `patience`.
  std::atomic<int64_t> num_there{0};
  // So many of them before the next are taken to be there, too. Twice as many each time that they
  // were not, so that this happens some dozens of times at most in the life of a tier, on each
  // thread that then finds.
  std::atomic<int64_t> patience{int64_t{1} << 15};
};

// A tier below the first.
struct LowerTier {
  const abi::StorageHandle& handle;
  // At least one; a key that none of them contains has no row there.
  const std::vector<const kernels::BlockedBloom*>& filters;
  History& history;
};

// What is kept of keys that the tier has, in no order.
struct Staged {
  int64_t* keys = nullptr;  // out (room) int64
  char* rows = nullptr;     // out (room, row_bytes of the tier); NULL: rows are not kept
};

struct Below {
  int64_t num_found = 0;
  int64_t num_skipped = 0;  // keys that the filters ruled out
  double seconds = 0;       // of this call's time, the part that the tier took
};

// Asks a lower tier for keys that none above has.
//
// missing  // in, out (num_missing) int64: the places of these keys, each once; afterwards
//          // those that are missing still come first, in no order
// staged   has room for num_missing keys
//
// REQUIRES: the tier's find may be called on several threads at once. Throws what it throws;
// then any of the arrays may have been written.
Below find_below(const SparringExecutor* executor, const LowerTier& tier, const Asked& asked,
                 int64_t* missing, int64_t num_missing, const Staged& staged);

// Asks the first tier for all keys, and the one below for those that it lacks.
struct Through {
  double seconds = 0;       // of this call's time, the part that the first tier took
  int64_t num_missing = 0;  // keys that it lacks
  Below below;
};

// As find_below, for `count` keys of which no tier has been asked for any.
//
// asked    `found` and `rows` are written throughout: rows of missing keys are zeros
// missing  // out (count) int64: places of keys that both tiers lack come first, in no order
// staged   has room for `count` keys
Through find_first(const SparringExecutor* executor, const abi::StorageHandle& first,
                   const LowerTier& tier, const Asked& asked, int64_t count, int64_t* missing,
                   const Staged& staged);

}  // namespace sparring::tiers

#endif  // SPARRING_TIERS_FIND_BELOW_H_
