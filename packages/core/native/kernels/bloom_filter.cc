#include "kernels/bloom_filter.h"

#include <algorithm>
#include <cmath>

#include "kernels/hash.h"
#include "kernels/saved_bytes.h"

namespace sparring::kernels {
namespace {

constexpr std::string_view kMagic = "sparring.bloom.1";
constexpr int64_t kBlock = 64;
constexpr uint8_t kMostCount = 255;

// Where a key's counters are: odd strides visit all places of a block before any twice.
struct Counters {
  uint64_t block;
  uint32_t first;
  uint32_t stride;

  Counters(int64_t key, uint64_t seed, uint64_t num_blocks) {
    __extension__ using Wide = unsigned __int128;
    const uint64_t hash = mix64(static_cast<uint64_t>(key) ^ seed);
    block = static_cast<uint64_t>((static_cast<Wide>(hash) * num_blocks) >> 64);
    const uint64_t second = mix64(hash + 0x9e3779b97f4a7c15u);
    first = static_cast<uint32_t>(second) % kBlock;
    stride = static_cast<uint32_t>(second >> 32) | 1;
  }
  uint32_t place(int64_t i) const {
    return (first + static_cast<uint32_t>(i) * stride) % static_cast<uint32_t>(kBlock);
  }
};

}  // namespace

BloomFilter::Shape BloomFilter::shape_for(double rate, int64_t expected_keys) {
  const double bits = -std::log2(rate);
  const double unevenness = 1.45 * std::pow(1.5, std::max(0.0, bits - 6.64));
  const double counters = unevenness * 1.4427 * bits * static_cast<double>(expected_keys);
  return {.num_blocks = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(counters / kBlock))),
          .num_hashes = std::clamp<int64_t>(std::lround(bits), 1, 32)};
}

BloomFilter::BloomFilter(int64_t k, const Shape& shape, uint64_t seed)
    : k_(k), shape_(shape), seed_(seed), blocks_(static_cast<size_t>(shape.num_blocks * kBlock)) {}

void BloomFilter::admit(const int64_t* keys, int64_t count, int64_t,
                        uint8_t* is_admitted) noexcept {
  constexpr int64_t kAhead = 16;
  const auto num_blocks = static_cast<uint64_t>(shape_.num_blocks);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      const Counters later(keys[i + kAhead], seed_, num_blocks);
      __builtin_prefetch(blocks_.data() + later.block * kBlock, 1);
    }
    const Counters counters(keys[i], seed_, num_blocks);
    uint8_t* const block = blocks_.data() + counters.block * kBlock;
    uint8_t lowest = kMostCount;
    for (int64_t hash = 0; hash < shape_.num_hashes; ++hash) {
      lowest = std::min(lowest, block[counters.place(hash)]);
    }
    const uint8_t raised = lowest == kMostCount ? lowest : static_cast<uint8_t>(lowest + 1);
    for (int64_t hash = 0; hash < shape_.num_hashes; ++hash) {
      uint8_t& counter = block[counters.place(hash)];
      counter = std::max(counter, raised);
    }
    is_admitted[i] = raised >= k_;
  }
}

int64_t BloomFilter::memory_bytes() const {
  return static_cast<int64_t>(sizeof(*this) + blocks_.capacity());
}

std::string BloomFilter::save() const {
  std::string bytes(kMagic);
  const uint64_t header[4] = {static_cast<uint64_t>(k_), static_cast<uint64_t>(shape_.num_blocks),
                              static_cast<uint64_t>(shape_.num_hashes), seed_};
  append(bytes, header, 4);
  append(bytes, blocks_.data(), blocks_.size());
  return bytes;
}

void BloomFilter::load(std::string_view saved) {
  SavedBytes bytes(saved);
  bytes.expect(kMagic);
  const auto header = bytes.take_many<uint64_t>(4);
  if (header[0] != static_cast<uint64_t>(k_)) throw std::invalid_argument("another k was saved");
  if (header[1] != static_cast<uint64_t>(shape_.num_blocks) ||
      header[2] != static_cast<uint64_t>(shape_.num_hashes)) {
    throw std::invalid_argument("a filter of another size was saved");
  }
  if (header[3] != seed_) throw std::invalid_argument("the filter of another table was saved");
  auto blocks = bytes.take_many<uint8_t>(blocks_.size());
  bytes.expect_end();
  blocks_ = std::move(blocks);
}

}  // namespace sparring::kernels
