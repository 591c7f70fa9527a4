#include "pool.h"

#include <algorithm>
#include <new>

namespace sparring::hkv {

void Pool::reserve(uint64_t count) {
  if (count <= num_free_) return;
  const uint64_t needed = first_new_ + (count - num_free_);
  if (needed > arena_.limit()) throw std::bad_alloc();
  if (needed > committed_) {
    arena_.commit(needed);
    committed_ = needed;
  }
}

uint32_t Pool::allocate() {
  if (num_free_ > 0) {
    const uint32_t index = first_free_;
    std::memcpy(&first_free_, arena_.at(index) + link_offset_, sizeof first_free_);
    --num_free_;
    return index;
  }
  if (first_new_ == committed_) reserve(1);
  return static_cast<uint32_t>(first_new_++);
}

void Pool::release(uint32_t index) {
  std::memcpy(arena_.at(index) + link_offset_, &first_free_, sizeof first_free_);
  first_free_ = index;
  ++num_free_;
}

}  // namespace sparring::hkv
