#include "device_index.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sparring::hkv {
namespace {

// Number of buckets of the first overflow segment of a growing index.
constexpr uint64_t kFirstOverflow = 16;

}  // namespace

DeviceIndex::DeviceIndex(device::Device& device, device::Stream stream, const DeviceLayout& layout,
                         bool has_scores, uint64_t seed)
    : device_(device),
      stream_(stream),
      has_scores_(has_scores),
      has_links_(layout.has_chains()),
      max_overflow_(layout.max_overflow) {
  const bool is_growing = layout.num_fixed_heads == 0;
  const uint64_t heads = is_growing ? 1 : layout.num_fixed_heads;
  // The overflow of a fixed index is one segment, so that it uses exactly the planned memory.
  const uint64_t overflow = is_growing ? kFirstOverflow : std::max<uint64_t>(1, max_overflow_);
  const auto make_buckets = [&](uint64_t first) {
    DeviceBuckets buckets{};
    buckets.first = static_cast<uint32_t>(first);
    buckets.first_bits = static_cast<uint32_t>(std::bit_width(first - 1));
    buckets.has_scores = has_scores;
    buckets.has_links = has_links_;
    return buckets;
  };
  view_.heads = make_buckets(heads);
  view_.overflow = make_buckets(overflow);
  view_.num_heads = static_cast<uint32_t>(heads);
  view_.is_growing = is_growing;
  view_.has_chains = has_links_;
  view_.seed = seed;
  view_.slots_per_head = static_cast<uint32_t>(layout.max_rows / heads);
  view_.num_larger_heads = static_cast<uint32_t>(layout.max_rows % heads);
  view_.heads.segments[0] = add_segment(heads);
}

uint64_t DeviceIndex::memory_bytes() const {
  uint64_t bytes = free_overflow_.num_bytes();
  for (const device::Buffer& segment : segments_) bytes += segment.num_bytes();
  return bytes;
}

char* DeviceIndex::add_segment(uint64_t num_buckets) {
  segments_.reserve(segments_.size() + 1);
  device::Buffer segment(
      device_, num_buckets * DeviceBuckets::bucket_bytes(has_scores_, has_links_), stream_,
      device::Lifetime::kLasting);
  empty(segment);
  segments_.push_back(std::move(segment));
  return segments_.back().as<char>();
}

// Digests are the first bytes of a segment, links its last.
void DeviceIndex::empty(const device::Buffer& segment) {
  const uint64_t num_buckets =
      segment.num_bytes() / DeviceBuckets::bucket_bytes(has_scores_, has_links_);
  device_.fill(segment.as<char>(), 0, num_buckets * kDeviceSlots, stream_);
  if (!has_links_) return;
  const uint64_t link_bytes = num_buckets * sizeof(uint32_t);
  device_.fill(segment.as<char>() + segment.num_bytes() - link_bytes, 0, link_bytes, stream_);
}

void DeviceIndex::clear() {
  for (const device::Buffer& segment : segments_) empty(segment);
}

void DeviceIndex::reserve_overflow(uint64_t count) {
  count = std::min(count, max_overflow_);
  while (overflow_capacity_ < count) {
    DeviceBuckets& buckets = view_.overflow;
    const uint64_t size = buckets.segment_size(num_overflow_segments_);
    const uint64_t capacity = overflow_capacity_ + size;
    device::Buffer list(device_, capacity * sizeof(uint32_t), stream_, device::Lifetime::kLasting);
    // All of it, although only the counted part is used: lists are copied completely.
    device_.fill(list.as<void>(), 0, list.num_bytes(), stream_);
    char*& segment = buckets.segments[num_overflow_segments_];
    if (segment == nullptr) segment = add_segment(size);  // else left by a call that failed later
    if (overflow_capacity_ > 0) {
      device_.copy(list.as<void>(), free_overflow_.as<void>(),
                   overflow_capacity_ * sizeof(uint32_t), stream_);
    }
    free_overflow_ = std::move(list);
    overflow_capacity_ = capacity;
    ++num_overflow_segments_;
  }
}

void DeviceIndex::prepare_doubling() {
  const auto segment = static_cast<uint32_t>(std::bit_width(num_heads()));
  if (view_.heads.segments[segment] != nullptr) return;  // left by a call that failed later
  view_.heads.segments[segment] = add_segment(num_heads());
}

}  // namespace sparring::hkv
