// How many buckets and rows a table may have, worked out once from its options.
//
//   options                      index      rows at most      when full
//   nothing                      growing    2^32 - 1          SPARRING_CAPACITY
//   capacity, policy none        growing    capacity          SPARRING_CAPACITY
//   memory_bytes, policy none    fixed      what fits         SPARRING_CAPACITY
//   either, another policy       fixed      capacity or       the policy evicts
//                                           what fits
//
// A fixed index has one bucket for each 48 rows, so buckets are 0.8 full when
// the table is. Where nothing may be evicted, full buckets get overflow
// chains; these are dense (see bucket.h), so rows / 60 buckets are enough for
// all chains together, however the keys fall.
#ifndef SPARRING_HKV_TABLE_LAYOUT_H_
#define SPARRING_HKV_TABLE_LAYOUT_H_

#include <cstdint>
#include <string>

#include "policy.h"

namespace sparring::hkv {

struct TableOptions {
  uint64_t row_bytes = 0;
  int64_t capacity = -1;      // rows; -1: no bound
  uint64_t memory_bytes = 0;  // 0: no bound
  PolicyKind policy = PolicyKind::kNone;
  uint64_t hash_seed = 0;
};

struct Layout {
  uint64_t max_rows;
  uint64_t num_fixed_buckets;  // 0: growing
  uint64_t max_buckets;
  bool is_bounded;
};

// `overhead_bytes`: memory of the table other than buckets and rows.
// Throws StatusError where the options contradict each other or where not even
// one row fits.
Layout make_layout(const TableOptions& options, uint64_t overhead_bytes);

// Why a full table takes no more rows and what to do, the end of a message. REQUIRES: nothing
// may be evicted.
std::string remedy_when_full(const Layout& layout);

// Rows lie at least this far apart: free ones hold a link of 4 bytes.
inline uint64_t row_stride(uint64_t row_bytes) { return row_bytes < 4 ? 4 : row_bytes; }

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_LAYOUT_H_
