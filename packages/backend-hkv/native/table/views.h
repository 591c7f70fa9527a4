// The data that a reader needs to find keys and rows, by value: plain structs and
// functions that are always inlined, because the kernels use them (see kernels.h).
// A view is valid as long as no thread writes to its data.
#ifndef SPARRING_HKV_TABLE_VIEWS_H_
#define SPARRING_HKV_TABLE_VIEWS_H_

#include <cstdint>

#include "bucket.h"
#include "inline.h"

namespace sparring::hkv {

// Numbered elements of one size in chunks; see arena.h.
struct ArenaView {
  char* const* chunks;
  uint64_t element_bytes;
  uint32_t shift;
  uint32_t mask;

  SPARRING_HKV_INLINE char* at(uint32_t index) const {
    return chunks[index >> shift] + (index & mask) * element_bytes;
  }
};

// One segment of a growing directory; see directory.h.
inline constexpr uint32_t kSegmentBits = 8;
inline constexpr uint32_t kSegments = 1u << kSegmentBits;

struct Segment {
  const uint32_t* words;  // (2^depth) bucket numbers
  uint32_t inline_word;
  uint32_t depth;
};

SPARRING_HKV_INLINE const uint32_t* word_of(const Segment* segments, uint64_t hash) {
  const Segment& segment = segments[hash >> (64 - kSegmentBits)];
  // Two shifts, because one by 64 (depth 0) would be undefined.
  const uint64_t rest = (hash << kSegmentBits) >> 1;
  return segment.words + (rest >> (63 - segment.depth));
}

__extension__ typedef unsigned __int128 uint128;

SPARRING_HKV_INLINE uint64_t fixed_bucket_of(uint64_t hash, uint64_t num_buckets) {
  return static_cast<uint64_t>((static_cast<uint128>(hash) * num_buckets) >> 64);
}

struct IndexView {
  const Segment* segments;
  uint64_t num_fixed_buckets;  // 0: growing, with `segments`
  ArenaView buckets;
  uint64_t seed;
};

// The location of a key.
struct Place {
  Bucket* bucket = nullptr;  // nullptr: the key is missing
  uint32_t slot = 0;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_VIEWS_H_
