// An arena with a free list: allocates and releases elements by number.
//
// Free elements are linked through 4 of their bytes, at `link_offset`, so the
// list needs no memory and releasing cannot fail.
//
// Invariants
//   1. Numbers in [0, num_used() + num_free()) have been allocated before.
//   2. A number is either in use or in the free list.
#ifndef SPARRING_HKV_TABLE_POOL_H_
#define SPARRING_HKV_TABLE_POOL_H_

#include <cstdint>
#include <cstring>

#include "arena.h"

namespace sparring::hkv {

class Pool {
 public:
  // REQUIRES: link_offset + 4 <= element_bytes.
  Pool(uint64_t element_bytes, uint64_t limit, uint64_t link_offset)
      : arena_(element_bytes, limit), link_offset_(link_offset) {}

  // Guarantees that the next `count` allocations succeed.
  // Throws std::bad_alloc without changing anything if the limit or the memory
  // of the system does not suffice.
  void reserve(uint64_t count);

  // The element contains the bytes of its last use, or zeros.
  // Throws std::bad_alloc, but never after a sufficient reserve().
  uint32_t allocate();
  void release(uint32_t index);

  char* at(uint32_t index) const { return arena_.at(index); }
  ArenaView view() const { return arena_.view(); }
  uint64_t num_used() const { return first_new_ - num_free_; }
  // The largest number ever allocated, plus one.
  uint64_t end() const { return first_new_; }
  uint64_t limit() const { return arena_.limit(); }
  uint64_t memory_bytes() const { return arena_.memory_bytes(); }

 private:
  Arena arena_;
  uint64_t link_offset_;
  uint64_t first_new_ = 0;
  uint64_t committed_ = 0;
  uint64_t num_free_ = 0;
  uint32_t first_free_ = 0;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_POOL_H_
