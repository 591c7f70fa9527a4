#include "eviction.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "match.h"
#include "sparring/storage_border.h"

namespace sparring::hkv {

namespace {

using border::StatusError;

constexpr uint64_t kBatchBytes = uint64_t{1} << 20;
constexpr uint64_t kBatchRows = 1024;

}  // namespace

Place first_to_leave(Bucket* bucket) {
  Place lowest;
  uint64_t lowest_score = 0;
  for (uint64_t mask = occupied_slots(bucket); mask != 0; mask &= mask - 1) {
    const auto slot = static_cast<uint32_t>(std::countr_zero(mask));
    const uint64_t score = bucket->scores()[slot];
    // Keys are on other cache lines, so they are read only if scores are equal.
    if (lowest.bucket == nullptr || score < lowest_score ||
        (score == lowest_score && bucket->key(slot) < bucket->key(lowest.slot))) {
      lowest = {bucket, slot};
      lowest_score = score;
    }
  }
  return lowest;
}

void first_to_leave(const Index& index, std::vector<Rank>& heap) {
  // A heap whose top is the last of the entries to evict.
  heap.clear();
  for (uint64_t number = 0; number < index.num_bucket_numbers(); ++number) {
    const Bucket* bucket = index.bucket(number);
    for (uint64_t mask = occupied_slots(bucket); mask != 0; mask &= mask - 1) {
      const auto slot = static_cast<uint32_t>(std::countr_zero(mask));
      const Rank rank{bucket->scores()[slot], bucket->key(slot)};
      if (heap.size() == heap.capacity()) {
        if (!(rank < heap.front())) continue;
        std::pop_heap(heap.begin(), heap.end());
        heap.pop_back();
      }
      heap.push_back(rank);
      std::push_heap(heap.begin(), heap.end());
    }
  }
  std::sort_heap(heap.begin(), heap.end());
}

EvictionBuffer::EvictionBuffer(const SparringEvictionSink& sink, uint64_t row_bytes,
                               uint64_t most)
    : sink_(sink), row_bytes_(row_bytes) {
  if (sink_.receive == nullptr) return;
  batch_ = std::clamp<uint64_t>(kBatchBytes / row_bytes, 1, kBatchRows);
  batch_ = std::max<uint64_t>(1, std::min(batch_, most));
  keys_.resize(batch_);
  rows_.resize(batch_ * row_bytes);
  scores_.resize(batch_);
}

void EvictionBuffer::add(int64_t key, const char* row, uint64_t score) {
  if (sink_.receive == nullptr) return;
  keys_[count_] = key;
  std::memcpy(rows_.data() + count_ * row_bytes_, row, row_bytes_);
  scores_[count_] = score;
  if (++count_ == batch_) flush();
}

void EvictionBuffer::finish() {
  flush();
  if (is_refused_) {
    throw StatusError(SPARRING_INTERNAL,
                      "evicted rows: the sink rejected them; they were removed from the table "
                      "nevertheless, and rows that the sink did not accept are lost");
  }
}

void EvictionBuffer::flush() {
  if (count_ > 0 && !is_refused_) {
    is_refused_ = sink_.receive(sink_.context, static_cast<int64_t>(count_), keys_.data(),
                                rows_.data(), scores_.data()) != 0;
  }
  count_ = 0;
}

}  // namespace sparring::hkv
