// The bucket of the device table: 128 slots whose digests, entries and scores are
// stored separately, so that a warp reads each part in whole cache lines.
//
//   digests   |d0|d1|d2| ... |d127|            128 x 1 byte    one line of 128 bytes
//
//   entries   |      key      | row  | used |  128 x 16 bytes  128-byte aligned
//             | int64, 8 byte | 4    | 4    |
//
//   scores    | s0 | s1 | ...                  128 x 8 bytes   (tables that store scores)
//
//   overflow  | link |                         4 bytes         (tables with chains)
//
// Buckets are allocated in segments of contiguous memory, part by part:
//
//   segment   | digests of all | entries of all | scores of all | links of all |
//
// A segment never moves. Segment 0 has `first` buckets, and each later one as many
// as all before it together. Therefore doubling the number of buckets adds one
// segment and copies nothing, and all addresses fit into the arguments of a kernel.
//
// Reading a digest line finds the slot (one line for 128 keys); reading an entry
// (one 32-byte sector) compares the key and gives the row.
//
// A table has one of two directories. Both are monotonic in the hash, so that a
// scan can resume at a hash:
//   growing   2^k heads; head = the first k bits of the hash, in reversed order.
//             Head h splits into h and h + 2^k by the next bit of the hash.
//   fixed     a fixed number n of heads; head = floor(hash * n / 2^64).
//
// And one of two behaviors when it is full:
//   chaining  (nothing may be evicted) a full head gets overflow buckets.
//   evicting  a key has exactly one bucket. Bucket b may use `limit(b)` slots; the
//             limits add up to the capacity. Its slot s always has row
//             first_row(b) + s, so rows need no allocation.
//
// Invariants
//   1. Digest 0 means that the slot is empty. No key is reserved, and the entry and
//      score of an empty slot are undefined.
//   2. The digest of an occupied slot is digest_of(hash of its key).
//   3. A key is in at most one slot, in the bucket or chain that its hash selects.
//   4. Chains are dense: every bucket of a chain except the last is full, and the
//      last is not empty unless it is the only one.
//   5. Link 0 ends a chain; link l > 0 is overflow bucket l - 1.
//   6. A row number is either in exactly one slot or in the free list.
//   7. A free overflow bucket has only digests 0; its link is undefined.
//   8. `used` is 0 except during an upsert that evicts, where it is 1 + the position
//      in the call of the key that filled the slot.
//   9. Only stream-ordered work of this table accesses these data: finds only read,
//      and a writing kernel changes a bucket through the one warp that owns it, or
//      through whole words that no other thread accesses.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_BUCKET_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_BUCKET_H_

#include <cstddef>
#include <cstdint>

#include "device/atomics.h"
#include "device/warp.h"
#include "hash.h"

namespace sparring::hkv {

inline constexpr uint32_t kDeviceSlots = 128;
inline constexpr uint32_t kMaxSegments = 32;
inline constexpr uint32_t kNoDeviceRow = 0xffffffffu;

struct DeviceEntry {
  int64_t key;
  uint32_t row;
  uint32_t used;
};
static_assert(sizeof(DeviceEntry) == 16);

SPARRING_DEVICE DeviceEntry load_entry(const DeviceEntry* from) {
  const device::Vector16 read = device::load_16(from);
  return {static_cast<int64_t>(read.words[0] | uint64_t{read.words[1]} << 32), read.words[2],
          read.words[3]};
}

SPARRING_DEVICE void store_entry(DeviceEntry* to, const DeviceEntry& entry) {
  const auto key = static_cast<uint64_t>(entry.key);
  device::store_16(to, {{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), entry.row,
                         entry.used}});
}

// The addresses of the parts of one bucket.
struct DeviceBucket {
  uint8_t* digests;      // (128)
  DeviceEntry* entries;  // (128)
  uint64_t* scores;      // (128), only if scores are stored
  uint32_t* link;        // only if buckets have chains
};

// Buckets of one kind, numbered from 0, in segments.
struct DeviceBuckets {
  char* segments[kMaxSegments];  // device
  uint32_t first;                // buckets of segment 0: any number if there is one segment, else
                                 // a power of two
  uint32_t first_bits;           // 2^first_bits >= first
  bool has_scores;
  bool has_links;

  SPARRING_HOST_DEVICE static uint64_t bucket_bytes(bool has_scores, bool has_links) {
    return kDeviceSlots * (1 + sizeof(DeviceEntry) + (has_scores ? sizeof(uint64_t) : 0)) +
           (has_links ? sizeof(uint32_t) : 0);
  }
  SPARRING_HOST_DEVICE uint64_t segment_start(uint32_t segment) const {
    return segment == 0 ? 0 : uint64_t{first} << (segment - 1);
  }
  SPARRING_HOST_DEVICE uint64_t segment_size(uint32_t segment) const {
    return segment == 0 ? first : uint64_t{first} << (segment - 1);
  }

  SPARRING_DEVICE DeviceBucket at(uint32_t number) const {
    uint32_t segment = 0;
    uint64_t size = first;
    uint64_t index = number;
    if (number >= first) {
      segment = 32 - device::leading_zeros(number >> first_bits);
      size = uint64_t{first} << (segment - 1);
      index = number - size;
    }
    char* const base = segments[segment];
    char* const entries = base + size * kDeviceSlots;
    char* const scores = entries + size * kDeviceSlots * sizeof(DeviceEntry);
    char* const links = scores + (has_scores ? size * kDeviceSlots * sizeof(uint64_t) : 0);
    return {reinterpret_cast<uint8_t*>(base) + index * kDeviceSlots,
            reinterpret_cast<DeviceEntry*>(entries) + index * kDeviceSlots,
            reinterpret_cast<uint64_t*>(scores) + index * kDeviceSlots,
            reinterpret_cast<uint32_t*>(links) + index};
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_BUCKET_H_
