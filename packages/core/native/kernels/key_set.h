// A growing set of keys, for the keys that steps have changed.
//
//   slots_   capacity x int64, linear probing from the key's home, at most three
//            quarters full; empty slots contain kEmpty
//
//   home      h        h        h
//   slot    │ 7 │ ∅ │ 42 │ 3 │ 9 │ ∅ │      3 is one slot behind its home, which contains 42
//
// INVARIANTS
//   1. kEmpty is also a valid key; `has_empty_` is true if it is in the set.
//   2. capacity is a power of two, or 0 before the first key.
//   3. Between a key's home and its slot there is no empty slot; nothing is removed.
//   4. The slot of a key depends on a secret of the process (key_index.h), so that
//      clients cannot choose keys that collide.
//
// Not safe for concurrent use.
#ifndef SPARRING_KERNELS_KEY_SET_H_
#define SPARRING_KERNELS_KEY_SET_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/key_index.h"

namespace sparring::kernels {

class KeySet {
 public:
  KeySet() : secret_(hash_secret()) {}

  // Adds keys (n), which may repeat. is_new (n): 1 if the key was not in the set.
  // If it throws std::bad_alloc, some of the keys were added.
  void add(const int64_t* keys, int64_t count, uint8_t* is_new);
  // is_in (n): 1 if the key is in the set.
  void contains(const int64_t* keys, int64_t count, uint8_t* is_in) const;
  // All keys (size()), in any order.
  void copy_to(int64_t* keys) const;

  int64_t size() const { return size_ + (has_empty_ ? 1 : 0); }
  int64_t memory_bytes() const {
    return static_cast<int64_t>(slots_.capacity() * sizeof(int64_t));
  }

 private:
  static constexpr int64_t kEmpty = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kBlock = 32;

  uint64_t home(int64_t key) const {
    __extension__ using Wide = unsigned __int128;
    const Wide product =
        static_cast<Wide>(static_cast<uint64_t>(key) + secret_.addend) * secret_.multiplier;
    return (static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64)) & mask_;
  }
  // The key's slot, or the empty one where it would go.
  uint64_t slot_of(uint64_t home, int64_t key) const {
    uint64_t at = home;
    while (slots_[at] != key && slots_[at] != kEmpty) at = (at + 1) & mask_;
    return at;
  }
  void make_room(int64_t count);

  HashSecret secret_;
  std::vector<int64_t> slots_;
  uint64_t mask_ = 0;
  int64_t size_ = 0;  // without kEmpty
  bool has_empty_ = false;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_KEY_SET_H_
