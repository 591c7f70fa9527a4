// A growing set of keys, which remembers the keys that a step has touched.
//
//   slots_   capacity x int64, linear probing from the key's home, at most three
//            quarters full; kEmpty stands in those that hold none
//
//   home      h        h        h
//   slot    │ 7 │ ∅ │ 42 │ 3 │ 9 │ ∅ │      3 is one behind its home, as 42 has it
//
// INVARIANTS
//   1. kEmpty is a key like any other: whether it is in the set, `has_empty_` says.
//   2. capacity is a power of two, or 0 where nothing was added yet.
//   3. Between a key's home and its slot there is no empty slot; nothing is removed.
//   4. The slot of a key follows from a secret of the process (key_index.h), so that
//      no one can send keys that collide.
//
// Not safe for use by two threads at once.
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

  // Adds keys (n), which may repeat. is_new (n): 1 where the key was not in the set.
  // Throws std::bad_alloc; then some of the keys were added.
  void add(const int64_t* keys, int64_t count, uint8_t* is_new);
  // is_in (n): 1 where the key is in the set.
  void contains(const int64_t* keys, int64_t count, uint8_t* is_in) const;
  // All keys (size()), in no order.
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
