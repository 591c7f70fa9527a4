// Which keys the table is known to hold: what makes an exact number of rows
// cheap. An upsert must know how many of its keys are new. Looking them up costs
// as much as writing them; this set answers from memory.
//
// While nothing had to be dropped from it the set is complete: a key that is not
// in it is not in the table. Beyond its budget it forgets keys, and is a cache of
// answers: a key that is not in it has to be looked up.
//
//   bucket: 64 bytes, one cache line      occupied: 1 byte a bucket
//   ┌──────┬──────┬──────┬─ ─ ─┬──────┐   ┌─┬─┬─ ─┬─┐
//   │ code │ code │ code │     │ code │   │1│1│   │0│   bit i: slot i holds a code
//   └──────┴──────┴──────┴─ ─ ─┴──────┘   └─┴─┴─ ─┴─┘
//     0      1      2             7
//
// Invariants
//   1. Every code in the set is a key of the table.
//   2. is_complete(): every key of the table is in the set.
//   3. A code is in one of the two buckets of its hash, at most once. It was put
//      into the emptier one: so buckets overflow when about 8 of 10 slots are taken,
//      with one bucket for each code it would be 3 of 10.
//
// One thread at a time: only writers use it.
#ifndef SPARRING_ROCKSDB_TABLE_KNOWN_KEYS_H_
#define SPARRING_ROCKSDB_TABLE_KNOWN_KEYS_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace sparring::flash {

class KnownKeys {
 public:
  // `is_complete`: the table is empty.
  KnownKeys(uint64_t budget_bytes, bool is_complete);

  bool contains(uint64_t code) const;
  bool is_complete() const { return is_complete_; }
  // Takes no memory beyond the budget; forgets another key where there is no room.
  // Throws std::bad_alloc; the set is then as before.
  void insert(uint64_t code);
  void erase(uint64_t code);
  // Forgets everything. `is_complete`: the table is empty.
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
  // The slots of a bucket that hold `code`, as bits.
  uint8_t slots_with(uint64_t bucket, uint64_t code) const;
  bool place(uint64_t code);
  bool grow();

  uint64_t budget_bytes_;
  bool is_complete_;
  std::vector<Bucket> buckets_;  // a power of two of them, or none
  std::vector<uint8_t> occupied_;
  // May be read, for the memory held, concurrently with a writer.
  std::atomic<uint64_t> memory_bytes_{0};
};

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_KNOWN_KEYS_H_
