#include "directory.h"

#include <algorithm>

namespace sparring::hkv {

Directory::Directory(uint64_t num_fixed_buckets) : num_fixed_buckets_(num_fixed_buckets) {
  for (Segment& segment : segments_) segment = {&segment.inline_word, 0, 0};
}

uint64_t Directory::last_hash_of(uint64_t hash, uint32_t depth) const {
  if (is_growing()) return depth == 0 ? ~uint64_t{0} : hash | (~uint64_t{0} >> depth);
  // The first hash of the next bucket is ceil(next * 2^64 / buckets).
  const uint128 next = fixed_bucket_of(hash, num_fixed_buckets_) + 1;
  const uint128 first = ((next << 64) + (num_fixed_buckets_ - 1)) / num_fixed_buckets_;
  return static_cast<uint64_t>(first - 1);
}

void Directory::prepare_split(uint64_t hash, uint32_t depth) {
  const uint64_t index = hash >> (64 - kSegmentBits);
  Segment& segment = segments_[index];
  if (depth < kSegmentBits + segment.depth) return;
  const uint64_t num_words = uint64_t{1} << segment.depth;
  std::unique_ptr<uint32_t[]> doubled(new uint32_t[2 * num_words]);
  for (uint64_t word = 0; word < num_words; ++word) {
    doubled[2 * word] = doubled[2 * word + 1] = segment.words[word];
  }
  word_bytes_ += (words_[index] == nullptr ? 2 : 1) * num_words * sizeof(uint32_t);
  words_[index] = std::move(doubled);
  segment.words = words_[index].get();
  ++segment.depth;
}

void Directory::split(uint64_t hash, uint32_t depth, uint32_t upper) {
  if (depth < kSegmentBits) {
    const uint64_t covered = uint64_t{1} << (kSegmentBits - depth);
    const uint64_t first = (hash >> (64 - kSegmentBits)) & ~(covered - 1);
    for (uint64_t index = first + covered / 2; index < first + covered; ++index) {
      segments_[index].inline_word = upper;
    }
    return;
  }
  const uint64_t index = hash >> (64 - kSegmentBits);
  const Segment& segment = segments_[index];
  uint32_t* words = words_[index].get();
  const uint64_t covered = uint64_t{1} << (segment.depth - (depth - kSegmentBits));
  const uint64_t word = static_cast<uint64_t>(word_of(segments_.data(), hash) - segment.words);
  const uint64_t first = word & ~(covered - 1);
  std::fill(words + first + covered / 2, words + first + covered, upper);
}

}  // namespace sparring::hkv
