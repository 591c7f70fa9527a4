#include "kernels/bloom_filter.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "kernels/saved_bytes.h"
#include "sparring/initial_value.h"

namespace sparring::kernels {
namespace {

constexpr int64_t kAhead = 16;  // distance, in keys, of the prefetch of blocks
constexpr int64_t kLine = 64;
constexpr uint64_t kStream = 0x9e3779b97f4a7c15u;

uint64_t hash_of(int64_t key, uint64_t seed) { return mix64(static_cast<uint64_t>(key) ^ seed); }

uint64_t block_of(uint64_t hash, int64_t num_blocks) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(hash) * static_cast<uint64_t>(num_blocks)) >> 64);
}

}  // namespace

class BloomFilter::Counters {
 public:
  Counters(const BloomFilter& filter, int64_t key)
      : is_wide_(filter.k_ > 16), num_hashes_(filter.shape_.num_hashes) {
    const uint64_t first = hash_of(key, filter.seed_);
    block_ = filter.counters_ + block_of(first, filter.shape_.num_blocks) *
                                    static_cast<uint64_t>(block_bytes(filter.k_));
    uint64_t bits = 0;
    for (int64_t i = 0; i < num_hashes_; ++i) {
      if (i % 9 == 0) bits = mix64(first + (i == 0 ? kStream : 2 * kStream));
      places_[i] = static_cast<uint8_t>(bits & 127);
      bits >>= 7;
    }
  }

  int64_t lowest() const {
    int64_t least = kMostK;
    for (int64_t i = 0; i < num_hashes_; ++i) least = std::min(least, get(places_[i]));
    return least;
  }

  void raise_to(int64_t wanted) {
    for (int64_t i = 0; i < num_hashes_; ++i) {
      if (get(places_[i]) < wanted) set(places_[i], wanted);
    }
  }

 private:
  int64_t get(uint8_t place) const {
    return is_wide_ ? block_[place] : block_[place / 2] >> (place % 2 * 4) & 15;
  }

  void set(uint8_t place, int64_t value) {
    if (is_wide_) {
      block_[place] = static_cast<uint8_t>(value);
    } else {
      const int shift = place % 2 * 4;
      uint8_t& both = block_[place / 2];
      both = static_cast<uint8_t>((both & ~(15 << shift)) | (static_cast<int>(value) << shift));
    }
  }

  uint8_t* block_;
  const bool is_wide_;
  const int64_t num_hashes_;
  uint8_t places_[BloomShape::kMostHashes];
};

void BloomFilter::Free::operator()(uint8_t* memory) const { std::free(memory); }

BloomFilter::BloomFilter(int64_t k, const BloomShape& shape, uint64_t seed)
    : k_(k),
      shape_(shape),
      seed_(mix64(seed)),
      num_bytes_(k == 1 ? 0 : shape.num_blocks * block_bytes(k)) {
  if (num_bytes_ == 0) return;
  // calloc, because the system provides zeroed pages for large blocks without cost.
  memory_.reset(static_cast<uint8_t*>(std::calloc(static_cast<size_t>(num_bytes_ + kLine), 1)));
  if (!memory_) throw std::bad_alloc();
  void* aligned = memory_.get();
  auto space = static_cast<size_t>(num_bytes_ + kLine);
  counters_ = static_cast<uint8_t*>(
      std::align(kLine, static_cast<size_t>(num_bytes_), aligned, space));
}

void BloomFilter::decide_impl(const int64_t* keys, int64_t count, int64_t,
                              uint8_t* is_admitted) const {
  if (k_ == 1) {
    std::fill(is_admitted, is_admitted + count, 1);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      const uint64_t block = block_of(hash_of(keys[i + kAhead], seed_), shape_.num_blocks);
      __builtin_prefetch(counters_ + block * static_cast<uint64_t>(block_bytes(k_)));
    }
    is_admitted[i] = Counters(*this, keys[i]).lowest() + 1 >= k_;
  }
}

void BloomFilter::record_impl(const int64_t* keys, const uint8_t* is_admitted, int64_t count) {
  if (k_ == 1) return;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      const uint64_t block = block_of(hash_of(keys[i + kAhead], seed_), shape_.num_blocks);
      __builtin_prefetch(counters_ + block * static_cast<uint64_t>(block_bytes(k_)), 1);
    }
    if (is_admitted[i] != 0) continue;  // the counter is already at its largest value
    Counters counters(*this, keys[i]);
    counters.raise_to(std::min(counters.lowest() + 1, k_ - 1));
  }
}

std::string BloomFilter::save_impl() const {
  SavedWriter writer(SavedKind::bloom, static_cast<size_t>(4 * 8 + num_bytes_));
  writer.add(static_cast<uint64_t>(k_));
  writer.add(seed_);
  writer.add(static_cast<uint64_t>(shape_.num_blocks));
  writer.add(static_cast<uint64_t>(shape_.num_hashes));
  writer.add(counters_, static_cast<size_t>(num_bytes_));
  return writer.finish();
}

std::vector<uint8_t> BloomFilter::read(std::string_view saved) const {
  SavedReader reader(saved, SavedKind::bloom);
  reader.expect(static_cast<uint64_t>(k_), "k");
  reader.expect(seed_, "the table's seed");
  reader.expect(static_cast<uint64_t>(shape_.num_blocks), "the number of blocks");
  reader.expect(static_cast<uint64_t>(shape_.num_hashes), "the number of hashes");
  auto bytes = reader.take_many<uint8_t>(static_cast<uint64_t>(num_bytes_));
  reader.expect_end();
  const auto most = static_cast<int>(k_ - 1);
  const bool is_wide = k_ > 16;
  for (const uint8_t each : bytes) {
    if (is_wide ? each > most : (each & 15) > most || each >> 4 > most) {
      throw std::invalid_argument("a counter in them is above k - 1");
    }
  }
  return bytes;
}

void BloomFilter::load_impl(std::string_view saved) {
  const std::vector<uint8_t> bytes = read(saved);
  if (num_bytes_ > 0) std::memcpy(counters_, bytes.data(), bytes.size());
}

// Invariant 1 is then valid for the keys of both filters, because counters only grow.
void BloomFilter::join_impl(std::string_view saved) {
  const std::vector<uint8_t> bytes = read(saved);
  const bool is_wide = k_ > 16;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint8_t mine = counters_[i];
    const uint8_t other = bytes[i];
    counters_[i] = is_wide ? std::max(mine, other)
                           : static_cast<uint8_t>(std::max(mine & 15, other & 15) |
                                                  std::max(mine & 0xf0, other & 0xf0));
  }
}

}  // namespace sparring::kernels
