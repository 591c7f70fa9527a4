// The number of buckets and rows of a table, computed once from its options.
//
//   options                      index      maximum rows      when full
//   nothing                      growing    2^32 - 1          SPARRING_CAPACITY
//   capacity, policy none        growing    capacity          SPARRING_CAPACITY
//   memory_bytes, policy none    fixed      what fits         SPARRING_CAPACITY
//   either, another policy       fixed      capacity or       the policy evicts
//                                           what fits
//
// A fixed index has one bucket per 48 rows, so buckets are 0.8 full when the
// table is full. If nothing may be evicted, full buckets get overflow chains.
// Chains are dense (see bucket.h), so rows / 60 buckets suffice for all chains
// together, for any distribution of keys.
#ifndef SPARRING_HKV_TABLE_LAYOUT_H_
#define SPARRING_HKV_TABLE_LAYOUT_H_

#include <cstdint>
#include <string>

#include "policy.h"

namespace sparring::hkv {

struct TableOptions {
  uint64_t row_bytes = 0;
  int64_t capacity = -1;      // rows; -1: unlimited
  uint64_t memory_bytes = 0;  // 0: unlimited
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
// Throws StatusError if the options contradict each other or if not even one row
// fits.
Layout make_layout(const TableOptions& options, uint64_t overhead_bytes);

// Why a full table accepts no more rows and how to fix it: the end of a message. REQUIRES: nothing
// may be evicted.
std::string remedy_when_full(const Layout& layout);

// Minimum distance of rows: a free row contains a link of 4 bytes.
inline uint64_t row_stride(uint64_t row_bytes) { return row_bytes < 4 ? 4 : row_bytes; }

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_LAYOUT_H_
