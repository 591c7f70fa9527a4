#include "kernels/frequency_filter.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/saved_bytes.h"

namespace sparring::kernels {
namespace {

constexpr int64_t kAheadInFilter = 16;  // distance, in keys, of the prefetch of slots

}  // namespace

// calloc, because the system provides zeroed pages for large blocks without cost.
FrequencyFilter::Slots::Slots(int64_t capacity) : capacity_(capacity) {
  const auto size = static_cast<size_t>(capacity);
  keys_.reset(static_cast<int64_t*>(std::calloc(size, sizeof(int64_t))));
  counts_.reset(static_cast<uint32_t*>(std::calloc(size, sizeof(uint32_t))));
  if (!keys_ || !counts_) throw std::bad_alloc();
}

inline int64_t FrequencyFilter::Slots::home(int64_t key) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>(
      (static_cast<Wide>(hasher_.hash(key)) * static_cast<uint64_t>(capacity_)) >> 64);
}

// Inlined always, or GCC may delete the calls: see KeyIndex::prefetch.
[[gnu::always_inline]] inline void FrequencyFilter::Slots::prefetch(int64_t key) const {
  const int64_t slot = home(key);
  __builtin_prefetch(keys_.get() + slot);
  __builtin_prefetch(counts_.get() + slot);
}

int64_t FrequencyFilter::Slots::slot_of(int64_t key) const {
  int64_t slot = home(key);
  while (count(slot) != 0 && this->key(slot) != key) slot = next(slot);
  return slot;
}

void FrequencyFilter::Slots::fill(int64_t slot, int64_t key, uint32_t count) {
  keys_.get()[slot] = key;
  counts_.get()[slot] = count;
  ++size_;
}

void FrequencyFilter::Slots::free(int64_t slot) {
  int64_t gap = slot;
  for (int64_t at = next(slot); count(at) != 0; at = next(at)) {
    const int64_t from = home(key(at));
    const int64_t to_gap = gap >= from ? gap - from : gap - from + capacity_;
    const int64_t to_own = at >= from ? at - from : at - from + capacity_;
    if (to_gap > to_own) continue;  // its home comes after the gap
    keys_.get()[gap] = key(at);
    count(gap) = count(at);
    gap = at;
  }
  count(gap) = 0;
  --size_;
}

void FrequencyFilter::Slots::halve() {
  if (size_ == 0) return;
  // The walk starts after an empty slot, so no key can move past its end: keys that move
  // up come from slots that are still ahead.
  int64_t start = 0;
  while (count(start) != 0) ++start;
  for (int64_t at = next(start); at != start;) {
    if (count(at) == 1) {
      free(at);  // and continue with the key that moved here
      continue;
    }
    count(at) /= 2;
    at = next(at);
  }
}

FrequencyFilter::FrequencyFilter(int64_t k, int64_t memory_bytes)
    : k_(static_cast<uint32_t>(k)), most_slots_(memory_bytes / kSlotBytes) {}

void FrequencyFilter::decide_impl(const int64_t* keys, int64_t count, int64_t,
                                  uint8_t* is_admitted) const {
  if (slots_.size() == 0) {
    std::fill(is_admitted, is_admitted + count, k_ == 1);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAheadInFilter < count) slots_.prefetch(keys[i + kAheadInFilter]);
    is_admitted[i] = slots_.count(slots_.slot_of(keys[i])) + 1 >= k_;
  }
}

void FrequencyFilter::record_impl(const int64_t* keys, const uint8_t* is_admitted, int64_t count) {
  if (k_ == 1) return;
  bool has_aged = false;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAheadInFilter < count && slots_.capacity() > 0) slots_.prefetch(keys[i + kAheadInFilter]);
    const int64_t slot = slots_.capacity() > 0 ? slots_.slot_of(keys[i]) : 0;
    const bool is_known = slots_.capacity() > 0 && slots_.count(slot) != 0;
    if (is_admitted[i] != 0) {
      if (is_known) slots_.free(slot);
      continue;
    }
    if (is_known) {
      slots_.count(slot) = std::min(slots_.count(slot) + 1, k_ - 1);
      continue;
    }
    if (!make_room()) {
      const int64_t before = slots_.size();
      if (!has_aged) slots_.halve();
      has_aged = true;
      num_forgotten_ += before - slots_.size();
      if (slots_.size() >= slots_.limit()) {
        ++num_forgotten_;
        continue;
      }
    }
    slots_.fill(slots_.slot_of(keys[i]), keys[i], 1);
  }
}

bool FrequencyFilter::make_room() {
  if (slots_.size() < slots_.limit()) return true;
  if (slots_.capacity() >= most_slots_) return false;
  try {
    slots_ = resized(slots_, std::clamp(2 * slots_.capacity(), kLeastSlots, most_slots_));
  } catch (const std::bad_alloc&) {
    return false;  // as if the budget were exhausted
  }
  return slots_.size() < slots_.limit();
}

FrequencyFilter::Slots FrequencyFilter::resized(const Slots& slots, int64_t capacity) {
  Slots larger(capacity);
  for (int64_t slot = 0; slot < slots.capacity(); ++slot) {
    if (slots.count(slot) == 0) continue;
    larger.fill(larger.slot_of(slots.key(slot)), slots.key(slot), slots.count(slot));
  }
  return larger;
}

std::string FrequencyFilter::save_impl() const {
  std::vector<std::pair<int64_t, uint32_t>> counted;
  counted.reserve(static_cast<size_t>(slots_.size()));
  for (int64_t slot = 0; slot < slots_.capacity(); ++slot) {
    if (slots_.count(slot) != 0) counted.emplace_back(slots_.key(slot), slots_.count(slot));
  }
  std::sort(counted.begin(), counted.end());
  SavedWriter writer(SavedKind::frequency, 3 * 8 + counted.size() * kSlotBytes);
  writer.add(k_);
  writer.add(static_cast<uint64_t>(num_forgotten_));
  writer.add(counted.size());
  for (const auto& each : counted) writer.add(&each.first, 1);
  for (const auto& each : counted) writer.add(&each.second, 1);
  return writer.finish();
}

void FrequencyFilter::load_impl(std::string_view saved) {
  SavedReader reader(saved, SavedKind::frequency);
  reader.expect(k_, "k");
  const uint64_t num_forgotten = reader.take();
  const uint64_t size = reader.take();
  const auto keys = reader.take_many<int64_t>(size);
  const auto counts = reader.take_many<uint32_t>(size);
  reader.expect_end();
  if (num_forgotten > INT64_MAX) throw std::invalid_argument("a number in them is out of range");
  if (std::adjacent_find(keys.begin(), keys.end(), std::greater_equal<>()) != keys.end()) {
    throw std::invalid_argument("their keys are not in ascending order");
  }
  if (std::any_of(counts.begin(), counts.end(),
                  [&](uint32_t count) { return count == 0 || count >= k_; })) {
    throw std::invalid_argument("a count in them is out of range");
  }
  const auto num_keys = static_cast<int64_t>(size);
  if (num_keys > most_slots_ / 4 * 3) {
    throw std::invalid_argument("they have " + std::to_string(num_keys) +
                                " keys, but memory_bytes has space for at most " +
                                std::to_string(most_slots_ / 4 * 3));
  }
  int64_t capacity = slots_.capacity();
  while (num_keys > capacity / 4 * 3) {
    capacity = std::clamp(2 * capacity, kLeastSlots, most_slots_);
  }
  Slots loaded = capacity > 0 ? Slots(capacity) : Slots();
  for (size_t i = 0; i < size; ++i) loaded.fill(loaded.slot_of(keys[i]), keys[i], counts[i]);
  slots_ = std::move(loaded);
  num_forgotten_ = static_cast<int64_t>(num_forgotten);
}

}  // namespace sparring::kernels
