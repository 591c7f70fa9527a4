// A hash index from keys to small numbers, for one batch at a time.
//
//   slots_   capacity slots of 16 bytes, linear probing, at most half full
//            ┌──────────────┬───────────┬───────────┐
//            │ key    int64 │ epoch u32 │ index u32 │
//            └──────────────┴───────────┴───────────┘
//
// INVARIANTS
//   1. A slot is occupied exactly if its epoch is `epoch_`. A new epoch therefore empties
//      the index without writes, and no key is reserved.
//   2. `mask_ + 1`, the part of `slots_` in use, is a power of two and at least
//      twice the number of keys.
//   3. The hash depends on a secret of the process, so that clients cannot choose ids that
//      collide. No result may depend on it.
//
// Not safe for concurrent use.
#ifndef SPARRING_KERNELS_KEY_INDEX_H_
#define SPARRING_KERNELS_KEY_INDEX_H_

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace sparring::kernels {

// Two secrets of the process, generated once.
struct HashSecret {
  uint64_t addend;
  uint64_t multiplier;  // odd
};
const HashSecret& hash_secret();

class KeyIndex {
 public:
  KeyIndex() : secret_(hash_secret()) {}

  // Empties the index and reserves capacity for `count` keys. Throws std::bad_alloc.
  void reset(int64_t count) {
    const uint64_t wanted = capacity_for(count);
    if (wanted > capacity_) {
      // calloc, because the system provides zeroed pages for large blocks without cost.
      slots_.reset();
      capacity_ = 0;
      slots_.reset(static_cast<Slot*>(std::calloc(wanted, sizeof(Slot))));
      if (!slots_) throw std::bad_alloc();
      capacity_ = wanted;
      epoch_ = 0;
    }
    if (++epoch_ == 0) {
      for (uint64_t i = 0; i < capacity_; ++i) slots_.get()[i].epoch = 0;
      epoch_ = 1;
    }
    mask_ = wanted - 1;
    size_ = 0;
  }

  // Reserves capacity for `count` keys and keeps the existing keys.
  void reserve(int64_t count) {
    if (capacity_for(count) <= mask_ + 1) return;
    KeyIndex larger;
    larger.reset(count);
    for (uint64_t i = 0; size_ != 0 && i <= mask_; ++i) {
      const Slot& slot = slots_.get()[i];
      if (slot.epoch == epoch_) larger.find_or_insert(hash(slot.key), slot.key, slot.index);
    }
    *this = std::move(larger);
  }

  uint64_t hash(int64_t key) const {
    __extension__ using Wide = unsigned __int128;
    const Wide product =
        static_cast<Wide>(static_cast<uint64_t>(key) + secret_.addend) * secret_.multiplier;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  // Always inlined, because GCC considers a function that only prefetches to have no effect,
  // and deletes calls that it did not inline.
  [[gnu::always_inline]] void prefetch(uint64_t hash) const {
    __builtin_prefetch(slots_.get() + (hash & mask_), 1, 3);
  }

  // Returns the number of the key; inserts it with the number `next` if it is new.
  // REQUIRES: capacity for one more key; hash == hash(key).
  uint32_t find_or_insert(uint64_t hash, int64_t key, uint32_t next) {
    for (uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
      Slot& slot = slots_.get()[at];
      if (slot.epoch != epoch_) {
        slot = {key, epoch_, next};
        ++size_;
        return next;
      }
      if (slot.key == key) return slot.index;
    }
  }

  int64_t memory_bytes() const { return static_cast<int64_t>(capacity_ * sizeof(Slot)); }

 private:
  struct Slot {
    int64_t key;
    uint32_t epoch;
    uint32_t index;
  };
  struct Free {
    void operator()(Slot* slots) const { std::free(slots); }
  };

  static uint64_t capacity_for(int64_t count) {
    return std::bit_ceil(2 * static_cast<uint64_t>(count) + 2);
  }

  HashSecret secret_;
  std::unique_ptr<Slot, Free> slots_;
  uint64_t capacity_ = 0;
  uint64_t mask_ = 0;
  uint64_t size_ = 0;
  uint32_t epoch_ = 0;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_KEY_INDEX_H_
