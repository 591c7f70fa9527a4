// One data file of a serving snapshot. docs/format/packed.md contains the full specification.
//
//       0  header                                             128 bytes
//     128  buckets    [num_buckets] × 64 bytes
//          records    [num_keys] × record_bytes                then 64 zeros
//
//     bucket:  start u32 │ count u16 │ digests u16[29]
//     record:  key i64 │ row: elements │ scale f16 │ bias f16 │ up to a multiple of 4
//
// A bucket contains the records from start to start + count; its digests belong to the first 29
// of them. The key precedes its row. Therefore a hit reads two locations in memory: a cache line of
// the buckets, and the record.
//
// INVARIANTS
//   L1. All numbers are little-endian. Section offsets are computed from the header's numbers
//       and are not stored, so they cannot be invalid.
//   L2. hash = mix64(key ^ salt); bucket = high 64 bits of hash * num_buckets;
//       digest = lowest 16 bits of hash; digests without a record are 0.
//   L3. start of the first bucket is 0, and of each other bucket the end of the previous one; the
//       last ends at num_keys < 2^32; no bucket has more than max_bucket keys. A reader checks
//       the two numbers that it uses.
//   L4. Keys are unique, and belong to the partitions [begin, end).
//   L5. A committed file is never written. Readers map it read-only.
#ifndef SPARRING_PACKED_FORMAT_LAYOUT_H_
#define SPARRING_PACKED_FORMAT_LAYOUT_H_

#include <cstdint>

#include "format/dtype.h"
#include "sparring/initial_value.h"

namespace sparring::packed {

inline constexpr char kMagic[8] = {'S', 'P', 'R', 'P', 'A', 'C', 'K', '\0'};
inline constexpr uint32_t kFileVersion = 1;
inline constexpr uint64_t kMostKeys = (uint64_t{1} << 32) - 1;
inline constexpr uint64_t kMostBucketKeys = (1u << 16) - 1;
inline constexpr int64_t kMostDim = 65'536;

enum FileKind : uint32_t { kRows = 1, kErased = 2 };

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t kind;
  uint32_t dtype;
  uint32_t dim;
  uint32_t row_bytes;     // 0 for erased keys
  uint32_t record_bytes;
  uint64_t num_keys;
  uint64_t num_buckets;   // at least 1
  uint64_t salt;
  uint32_t max_bucket;
  uint16_t partition_begin;
  uint16_t partition_end;
  uint64_t table_hash;    // fnv1a of the table's name
  uint8_t zeros[48];
  uint64_t checksum;      // fnv1a of the preceding 120 bytes
};
static_assert(sizeof(Header) == 128);

inline constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

inline constexpr int kBucketDigests = 29;

struct Bucket {
  uint32_t start;
  uint16_t count;
  uint16_t digests[kBucketDigests];
};
static_assert(sizeof(Bucket) == 64);

struct Sections {
  uint64_t buckets = sizeof(Header);
  uint64_t records = 0;
  uint64_t file_bytes = 0;
};

// REQUIRES: num_keys and num_buckets <= kMostKeys, record_bytes < 2^20, so nothing overflows.
inline constexpr Sections sections_of(uint64_t num_keys, uint64_t num_buckets,
                                      uint64_t record_bytes) {
  Sections sections;
  sections.records = sections.buckets + num_buckets * sizeof(Bucket);
  sections.file_bytes = sections.records + num_keys * record_bytes + 64;
  return sections;
}

inline constexpr uint64_t bucket_of(uint64_t hash, uint64_t num_buckets) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * num_buckets) >> 64);
}

inline constexpr uint32_t record_bytes_of(FileKind kind, int32_t dtype, int64_t dim) {
  return kind == kErased
             ? 8
             : static_cast<uint32_t>(round_up(8 + static_cast<uint64_t>(row_bytes_of(dtype, dim)), 4));
}

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_LAYOUT_H_
