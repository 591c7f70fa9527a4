#include "kernels/frequency_filter.h"

#include <algorithm>

#include "kernels/saved_bytes.h"

namespace sparring::kernels {
namespace {

constexpr std::string_view kMagic = "sparring.frequency.1";

}  // namespace

FrequencyFilter::FrequencyFilter(int64_t k, int64_t memory_bytes)
    : k_(static_cast<uint32_t>(std::min<int64_t>(k, UINT32_MAX))),
      capacity_(memory_bytes / kSlotBytes),
      keys_(static_cast<size_t>(capacity_)),
      counts_(static_cast<size_t>(capacity_)) {}

int64_t FrequencyFilter::home(int64_t key) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>(
      (static_cast<Wide>(hasher_.hash(key)) * static_cast<uint64_t>(capacity_)) >> 64);
}

int64_t FrequencyFilter::slot_of(int64_t key) const {
  int64_t slot = home(key);
  while (counts_[static_cast<size_t>(slot)] != 0 && keys_[static_cast<size_t>(slot)] != key) {
    slot = next(slot);
  }
  return slot;
}

void FrequencyFilter::admit(const int64_t* keys, int64_t count, int64_t,
                            uint8_t* is_admitted) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    int64_t slot = slot_of(keys[i]);
    if (counts_[static_cast<size_t>(slot)] == 0) {
      is_admitted[i] = k_ <= 1;
      if (k_ <= 1) continue;
      if (size_ >= limit()) {
        age();
        slot = slot_of(keys[i]);
      }
      keys_[static_cast<size_t>(slot)] = keys[i];
      counts_[static_cast<size_t>(slot)] = 1;
      ++size_;
      continue;
    }
    is_admitted[i] = ++counts_[static_cast<size_t>(slot)] >= k_;
    if (is_admitted[i] != 0) free_slot(slot);
  }
}

// Keeps invariant 3: keys behind the gap that it would cut off from their homes move up.
void FrequencyFilter::free_slot(int64_t slot) {
  int64_t gap = slot;
  for (int64_t at = next(slot); counts_[static_cast<size_t>(at)] != 0; at = next(at)) {
    const int64_t from = home(keys_[static_cast<size_t>(at)]);
    const int64_t to_gap = (gap - from + capacity_) % capacity_;
    const int64_t to_own = (at - from + capacity_) % capacity_;
    if (to_gap >= to_own) continue;
    keys_[static_cast<size_t>(gap)] = keys_[static_cast<size_t>(at)];
    counts_[static_cast<size_t>(gap)] = counts_[static_cast<size_t>(at)];
    gap = at;
  }
  counts_[static_cast<size_t>(gap)] = 0;
  --size_;
}

// Frees a slot at least: counts of 1 leave, and others are halved until there are some.
void FrequencyFilter::age() {
  constexpr uint32_t kLeaving = UINT32_MAX;
  const int64_t before = size_;
  while (size_ == before) {
    for (uint32_t& count : counts_) {
      if (count != 0) count = count == 1 ? kLeaving : count / 2;
    }
    // What moves into a freed slot is looked at before the next; what moves around the
    // end has been looked at already.
    for (int64_t slot = 0; slot < capacity_; ++slot) {
      while (counts_[static_cast<size_t>(slot)] == kLeaving) free_slot(slot);
    }
  }
}

int64_t FrequencyFilter::memory_bytes() const {
  return static_cast<int64_t>(sizeof(*this)) + capacity_ * kSlotBytes;
}

std::string FrequencyFilter::save() const {
  std::string bytes(kMagic);
  const uint64_t header[2] = {k_, static_cast<uint64_t>(size_)};
  append(bytes, header, 2);
  std::vector<int64_t> keys;
  std::vector<uint32_t> counts;
  for (int64_t slot = 0; slot < capacity_; ++slot) {
    if (counts_[static_cast<size_t>(slot)] == 0) continue;
    keys.push_back(keys_[static_cast<size_t>(slot)]);
    counts.push_back(counts_[static_cast<size_t>(slot)]);
  }
  append(bytes, keys.data(), keys.size());
  append(bytes, counts.data(), counts.size());
  return bytes;
}

void FrequencyFilter::load(std::string_view saved) {
  SavedBytes bytes(saved);
  bytes.expect(kMagic);
  if (bytes.take<uint64_t>() != k_) throw std::invalid_argument("another k was saved");
  const auto size = bytes.take<uint64_t>();
  const auto keys = bytes.take_many<int64_t>(size);
  const auto counts = bytes.take_many<uint32_t>(size);
  bytes.expect_end();
  if (size > static_cast<uint64_t>(limit())) {
    throw std::invalid_argument("more keys were saved than memory_bytes has room for");
  }
  for (const uint32_t count : counts) {
    if (count == 0 || count >= k_) throw std::invalid_argument("a count is out of range");
  }
  std::vector<int64_t> sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw std::invalid_argument("a key was saved twice");
  }
  std::fill(counts_.begin(), counts_.end(), 0);
  size_ = static_cast<int64_t>(size);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto slot = static_cast<size_t>(slot_of(keys[i]));
    keys_[slot] = keys[i];
    counts_[slot] = counts[i];
  }
}

}  // namespace sparring::kernels
