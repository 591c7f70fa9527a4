// A set of keys that are known to be in the table, which makes an exact number of rows
// cheap. An upsert must know how many of its keys are new. Looking them up costs as
// much as writing them; this set answers from memory.
//
// While no key had to be removed from it, the set is complete: other keys are not in
// the table. Beyond its budget it drops keys and becomes a cache: other keys must be
// looked up.
//
//   bucket: 64 bytes, one cache line      occupied: 1 byte per bucket
//   ┌──────┬──────┬──────┬─ ─ ─┬──────┐   ┌─┬─┬─ ─┬─┐
//   │ code │ code │ code │     │ code │   │1│1│   │0│   bit i: slot i contains a code
//   └──────┴──────┴──────┴─ ─ ─┴──────┘   └─┴─┴─ ─┴─┘
//     0      1      2             7
//
// Invariants
//   1. Every code in the set is a key of the table.
//   2. is_complete(): every key of the table is in the set.
//   3. A code is in one of the two buckets of its hash, at most once. It was inserted
//      into the emptier one, so buckets overflow when about 80 % of the slots are used;
//      with one bucket per code it would be 30 %.
//
// Not thread-safe: only writers use it.
#ifndef SPARRING_ROCKSDB_TABLE_KNOWN_KEYS_H_
#define SPARRING_ROCKSDB_TABLE_KNOWN_KEYS_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace sparring::flash {

class KnownKeys {
 public:
  // `is_complete`: whether the table is empty.
  KnownKeys(uint64_t budget_bytes, bool is_complete);

  bool contains(uint64_t code) const;
  bool is_complete() const { return is_complete_; }
  // Uses no memory beyond the budget; removes another key if there is no free slot.
  // Throws std::bad_alloc without changing the set.
  void insert(uint64_t code);
  void erase(uint64_t code);
  // Removes all keys. `is_complete`: whether the table is empty.
  void clear(bool is_complete);
  uint64_t memory_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Bucket {
    uint64_t codes[8];
  };

  struct Choice {
    uint64_t first;
    uint64_t second;
  };

  Choice buckets_of(uint64_t code) const;
  // The slots of a bucket that contain `code`, as bits.
  uint8_t slots_with(uint64_t bucket, uint64_t code) const;
  bool place(uint64_t code);
  bool grow();

  uint64_t budget_bytes_;
  bool is_complete_;
  std::vector<Bucket> buckets_;  // a power of two, or none
  std::vector<uint8_t> occupied_;
  // May be read concurrently with a writer.
  std::atomic<uint64_t> memory_bytes_{0};
};

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_KNOWN_KEYS_H_
