// The bucket of the device table: 128 slots whose digests, entries and scores
// lie apart, so that a warp reads each part in whole lines.
//
//   digests   |d0|d1|d2| ... |d127|            128 x 1 byte    one line of 128 bytes
//
//   entries   |      key      | row  | used |  128 x 16 bytes  128-byte aligned
//             | int64, 8 byte | 4    | 4    |
//
//   scores    | s0 | s1 | ...                  128 x 8 bytes   (tables that keep scores)
//
//   overflow  | link |                         4 bytes         (tables that chain)
//
// Buckets come in segments of contiguous memory, the parts one after another:
//
//   segment   | digests of all | entries of all | scores of all | links of all |
//
// A segment never moves. Segment 0 has `first` buckets, each later one as many
// as all before it, so that doubling the number of buckets adds one segment and
// copies nothing, and all addresses fit into the arguments of a kernel.
//
// A digest read finds the slot (one line for 128 keys), an entry read (one
// 32-byte sector) confirms the key and names the row.
//
// A table has one of two directories, both monotonic in the hash so that a scan
// resumes at a hash:
//   growing   2^k heads; head = the first k bits of the hash, in reversed order.
//             Head h splits into h and h + 2^k by the next bit of the hash.
//   fixed     n heads for ever; head = floor(hash * n / 2^64).
//
// And one of two ways to be full:
//   chaining  (nothing may be evicted) a full head gets overflow buckets.
//   evicting  a key has exactly one bucket. Bucket b may fill `limit(b)` slots;
//             the limits add up to the capacity. Its slot s owns row
//             first_row(b) + s for ever, so no rows are handed out.
//
// Invariants
//   1. Digest 0 means that the slot is empty. Occupancy is nowhere else: no key
//      is reserved, and the entry and score of an empty slot mean nothing.
//   2. The digest of an occupied slot is digest_of(hash of its key).
//   3. A key is in at most one slot, in the bucket or chain its hash leads to.
//   4. Chains are dense: every bucket of a chain but the last is full, and the
//      last is not empty unless it is the only one.
//   5. Link 0 ends a chain; link l > 0 is overflow bucket l - 1.
//   6. A row number is in at most one slot, and not in the free list then.
//   7. A free overflow bucket has no digest but 0; its link means nothing.
//   8. `used` is 0 but during an upsert that evicts, where it is 1 + the position
//      in the call of the key that filled the slot.
//   9. Between calls only the stream-ordered work of this table touches
//      any of it: finds only read, and a writing kernel changes a bucket through
//      the one warp that owns it, or through whole words that no other touches.
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

// Where the parts of one bucket are.
struct DeviceBucket {
  uint8_t* digests;      // (128)
  DeviceEntry* entries;  // (128)
  uint64_t* scores;      // (128), only where scores are kept
  uint32_t* link;        // only where buckets chain
};

// Buckets of one kind, numbered from 0, in segments.
struct DeviceBuckets {
  char* segments[kMaxSegments];  // device
  uint32_t first;                // buckets of segment 0: any number if it is the only one, else
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
