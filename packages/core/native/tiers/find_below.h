// Find of a stack, for tiers whose rows are in memory.
//
//   keys ── find of the first tier ──► rows
//        │
//   missing: positions of keys that no tier above has
//        │ filters: certainly not in the tier ──► stays missing
//        ▼
//   find of the tier, for a chunk of keys
//        │                      while these rows are in the nearest cache
//        ├──► rows of the caller, in the caller's order
//        └──► whole rows, contiguous, for a caller that stages them
//
// Each thread executes all steps for one chunk of keys before the next chunk, so that the keys and
// rows that one step wrote are in the cache for the next step.
#ifndef SPARRING_TIERS_FIND_BELOW_H_
#define SPARRING_TIERS_FIND_BELOW_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "abi/storage_handle.h"
#include "kernels/blocked_bloom.h"
#include "sparring/storage_abi.h"

namespace sparring::tiers {

// The arguments of a find. Each tier fills the rows that it has.
struct Asked {
  const int64_t* keys;      // (n) int64
  SparringColumns columns;  // bytes of each row
  char* rows;               // out (n, row_stride) bytes; other rows are not changed
  uint64_t row_stride;
  uint8_t* found;  // out (n): set to 1 if the tier has the key
};

// Hit history of the finds of a tier, in any order; threads update it concurrently.
struct History {
  // Keys in a row that the tier had, counted up to `patience`.
  std::atomic<int64_t> num_there{0};
  // Number of consecutive found keys after which the next keys are assumed to be in the tier. It is
  // doubled each time that the assumption was wrong, so that this happens at most some dozens of
  // times in the life of a tier, on each thread.
  std::atomic<int64_t> patience{int64_t{1} << 15};
};

// A tier below the first.
struct LowerTier {
  const abi::StorageHandle& handle;
  // At least one; a key that none of them contains has no row there.
  const std::vector<const kernels::BlockedBloom*>& filters;
  History& history;
};

// The keys that the tier has and their rows, in any order.
struct Staged {
  int64_t* keys = nullptr;  // out (capacity) int64
  char* rows = nullptr;     // out (capacity, row_bytes of the tier); NULL: rows are not needed
};

struct Below {
  int64_t num_found = 0;
  int64_t num_skipped = 0;  // keys that the filters excluded
  double seconds = 0;       // share of the call's time that was spent in the tier
};

// Finds keys in a lower tier that no tier above has.
//
// missing  // in, out (num_missing) int64: distinct positions of these keys; afterwards the
//          // positions that are still missing come first, in any order
// staged   capacity for num_missing keys
//
// REQUIRES: the tier's find may be called on several threads concurrently. Rethrows its
// exceptions; the contents of the arrays are then undefined.
Below find_below(const SparringExecutor* executor, const LowerTier& tier, const Asked& asked,
                 int64_t* missing, int64_t num_missing, const Staged& staged);

// Result of a find in the first tier and, for the missing keys, in the tier below.
struct Through {
  double seconds = 0;       // share of the call's time that was spent in the first tier
  int64_t num_missing = 0;  // keys that are not in the first tier
  Below below;
};

// Like find_below, for `count` keys that no tier was searched for yet.
//
// asked    `found` and `rows` are written completely: rows of missing keys are zeros
// missing  // out (count) int64: the positions of keys that neither tier has come first, in any
//          // order
// staged   capacity for `count` keys
Through find_first(const SparringExecutor* executor, const abi::StorageHandle& first,
                   const LowerTier& tier, const Asked& asked, int64_t count, int64_t* missing,
                   const Staged& staged);

}  // namespace sparring::tiers

#endif  // SPARRING_TIERS_FIND_BELOW_H_
