// The bucket: 60 slots whose digests, keys and scores are stored separately from the rows.
//
//   byte   0          60     64                104        124    128
//          +----------+------+-----------------+----------+------+---
//          | digest   | over | key  x 5        | row x 5  | head | ...
//          | x 60     | flow | int64           | uint32   | word |
//          +----------+------+-----------------+----------+------+---
//          |<---- line 0 --->|<------------- line 1 ------------>| lines 2 .. 12
//
//   byte 832 (only if the table stores scores): score x 60, uint64, then 32
//   bytes of padding: 8 additional lines, 1,344 bytes in total.
//
//   Slot s: digest s of line 0; key and row s % 5 of line 1 + s / 5; score s.
//   `row` is the number of a row in the row pool. Rows never move.
//   `head word` of line 1 is the local depth (growing tables); in the other
//   lines it is unused.
//
// A bucket starts at a 64-byte boundary, so finding a key reads line 0, one
// entry line, and the row. Readers hold the shared lock; only the writer changes
// the bucket, under the exclusive lock.
//
// Invariants
//   1. Digest 0 means that the slot is empty. The key, row and score of an empty
//      slot are undefined, and no key is reserved.
//   2. The digest of an occupied slot is digest_of(hash of its key).
//   3. A key is in at most one slot of the table, and that slot is in the bucket
//      (or in the overflow chain of the bucket) that its hash selects.
//   4. Chains are dense: every bucket of a chain except the last is full, and
//      the last is not empty unless it is the only one. So m keys of one bucket
//      use max(1, ceil(m / 60)) buckets, regardless of earlier erasures.
//   5. `overflow` 0 ends a chain; bucket 0 is never an overflow bucket.
//   6. A row number is either in exactly one slot or in the free list.
//   7. A free bucket has only digests 0; its `overflow` links the free list.
#ifndef SPARRING_HKV_TABLE_BUCKET_H_
#define SPARRING_HKV_TABLE_BUCKET_H_

#include <cstddef>
#include <cstdint>

#include "inline.h"

namespace sparring::hkv {

inline constexpr uint32_t kSlots = 60;
inline constexpr uint32_t kSlotsPerLine = 5;
inline constexpr uint64_t kSlotMask = (uint64_t{1} << kSlots) - 1;
inline constexpr uint32_t kNoRow = 0xffffffffu;

struct EntryLine {
  int64_t keys[kSlotsPerLine];
  uint32_t rows[kSlotsPerLine];
  uint32_t head_word;
};

struct alignas(64) Bucket {
  uint8_t digests[kSlots];
  uint32_t overflow;
  EntryLine lines[kSlots / kSlotsPerLine];

  SPARRING_HKV_INLINE int64_t& key(uint32_t slot) {
    return lines[slot / kSlotsPerLine].keys[slot % kSlotsPerLine];
  }
  SPARRING_HKV_INLINE int64_t key(uint32_t slot) const {
    return lines[slot / kSlotsPerLine].keys[slot % kSlotsPerLine];
  }
  SPARRING_HKV_INLINE uint32_t& row(uint32_t slot) {
    return lines[slot / kSlotsPerLine].rows[slot % kSlotsPerLine];
  }
  SPARRING_HKV_INLINE uint32_t row(uint32_t slot) const {
    return lines[slot / kSlotsPerLine].rows[slot % kSlotsPerLine];
  }
  SPARRING_HKV_INLINE uint32_t& depth() { return lines[0].head_word; }
  SPARRING_HKV_INLINE uint32_t depth() const { return lines[0].head_word; }

  // REQUIRES: the table stores scores.
  SPARRING_HKV_INLINE uint64_t* scores() {
    return reinterpret_cast<uint64_t*>(this + 1);
  }
  SPARRING_HKV_INLINE const uint64_t* scores() const {
    return reinterpret_cast<const uint64_t*>(this + 1);
  }
};

inline constexpr uint64_t kBucketBytes = sizeof(Bucket);
inline constexpr uint64_t kScoredBucketBytes = kBucketBytes + 512;

static_assert(sizeof(EntryLine) == 64);
static_assert(kBucketBytes == 832 && alignof(Bucket) == 64);
static_assert(offsetof(Bucket, overflow) == 60);
static_assert(kSlots * sizeof(uint64_t) <= kScoredBucketBytes - kBucketBytes);

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_BUCKET_H_
