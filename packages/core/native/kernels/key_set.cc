#include "kernels/key_set.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sparring::kernels {

void KeySet::make_room(int64_t count) {
  const auto wanted = static_cast<uint64_t>(size_ + count);
  if (wanted * 4 <= slots_.size() * 3) return;
  std::vector<int64_t> larger(std::bit_ceil(std::max<uint64_t>(64, wanted * 4 / 3 + 1)), kEmpty);
  std::swap(slots_, larger);
  mask_ = slots_.size() - 1;
  for (const int64_t key : larger) {
    if (key != kEmpty) slots_[slot_of(home(key), key)] = key;
  }
}

void KeySet::add(const int64_t* keys, int64_t count, uint8_t* is_new) {
  uint64_t homes[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    // In blocks, so that keys that are already in the set reserve no capacity.
    make_room(kBlock);
    for (int64_t i = 0; i < size; ++i) {
      homes[i] = home(keys[begin + i]);
      __builtin_prefetch(slots_.data() + homes[i], 1, 3);
    }
    for (int64_t i = 0; i < size; ++i) {
      const int64_t key = keys[begin + i];
      if (key == kEmpty) {
        is_new[begin + i] = has_empty_ ? 0 : 1;
        has_empty_ = true;
        continue;
      }
      int64_t& slot = slots_[slot_of(homes[i], key)];
      is_new[begin + i] = slot == key ? 0 : 1;
      size_ += slot == key ? 0 : 1;
      slot = key;
    }
  }
}

void KeySet::contains(const int64_t* keys, int64_t count, uint8_t* is_in) const {
  if (size_ == 0) {
    for (int64_t i = 0; i < count; ++i) is_in[i] = keys[i] == kEmpty && has_empty_ ? 1 : 0;
    return;
  }
  uint64_t homes[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    for (int64_t i = 0; i < size; ++i) {
      homes[i] = home(keys[begin + i]);
      __builtin_prefetch(slots_.data() + homes[i], 0, 3);
    }
    for (int64_t i = 0; i < size; ++i) {
      const int64_t key = keys[begin + i];
      is_in[begin + i] =
          key == kEmpty ? (has_empty_ ? 1 : 0) : (slots_[slot_of(homes[i], key)] == key ? 1 : 0);
    }
  }
}

void KeySet::copy_to(int64_t* keys) const {
  if (has_empty_) *keys++ = kEmpty;
  for (const int64_t key : slots_) {
    if (key != kEmpty) *keys++ = key;
  }
}

}  // namespace sparring::kernels
