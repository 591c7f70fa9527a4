// Finds the bucket number for a hash, using the high bits of the hash.
//
// Fixed directory: bucket floor(hash * num_buckets / 2^64). It uses no memory.
//
// Growing directory: extendible hashing (Fagin, Nievergelt, Pippenger, Strong,
// TODS 4(3), 1979), divided into 256 segments that double independently, so
// that no insertion copies more than one segment:
//
//   hash   | 8 bits: segment | depth bits: word of the segment | the rest |
//
//   segment 0    [ 7 ]                     depth 0: one word, stored inline
//   segment 1    [ 3 | 3 | 9 | 12 ]        depth 2: bucket 3 has local depth 9,
//   ...                                    9 and 12 have local depth 10
//   segment 255  [ 4 ]                     may share a bucket with segment 254
//
// Invariants
//   1. The words that refer to a bucket of local depth l are exactly those of
//      the hashes that share their first l bits; they are adjacent.
//   2. A bucket with local depth < 8 covers whole segments, all of depth 0.
//   3. In both kinds the bucket is monotonic in the hash: each bucket owns one
//      half-open range of hashes. Scans rely on that.
#ifndef SPARRING_HKV_TABLE_DIRECTORY_H_
#define SPARRING_HKV_TABLE_DIRECTORY_H_

#include <array>
#include <cstdint>
#include <memory>

#include "views.h"

namespace sparring::hkv {

class Directory {
 public:
  static constexpr uint64_t kGrowing = 0;

  // `num_fixed_buckets`: kGrowing, or the fixed number of buckets.
  // A growing directory starts with bucket 0, of local depth 0.
  explicit Directory(uint64_t num_fixed_buckets);
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  bool is_growing() const { return num_fixed_buckets_ == kGrowing; }
  uint64_t num_fixed_buckets() const { return num_fixed_buckets_; }
  const Segment* segments() const { return segments_.data(); }

  uint32_t bucket_of(uint64_t hash) const {
    return is_growing() ? *word_of(segments_.data(), hash)
                        : static_cast<uint32_t>(fixed_bucket_of(hash, num_fixed_buckets_));
  }

  // The last hash of the range of the bucket of `hash`; `depth` is the bucket's
  // local depth (growing directories only).
  uint64_t last_hash_of(uint64_t hash, uint32_t depth) const;

  // Allocates memory for a split of the bucket of `hash`. Throws std::bad_alloc
  // without changing anything. REQUIRES: is_growing(), depth < 63.
  void prepare_split(uint64_t hash, uint32_t depth);
  // Assigns the upper half of the hashes of that bucket to `upper`.
  // REQUIRES: prepare_split() with the same arguments.
  void split(uint64_t hash, uint32_t depth, uint32_t upper);

  uint64_t memory_bytes() const { return word_bytes_; }  // excluding the object itself

 private:
  uint64_t num_fixed_buckets_;
  uint64_t word_bytes_ = 0;
  std::array<Segment, kSegments> segments_;
  std::array<std::unique_ptr<uint32_t[]>, kSegments> words_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_DIRECTORY_H_
