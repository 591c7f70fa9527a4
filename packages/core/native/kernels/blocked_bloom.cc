#include "kernels/blocked_bloom.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "kernels/parallel.h"
#include "kernels/saved_bytes.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

constexpr int64_t kGrain = 4096;  // keys
constexpr int kWords = 8;
constexpr uint64_t kMostSavedBlocks = uint64_t{1} << 44;

double rate_of(double keys_per_block) {
  double chance = std::exp(-keys_per_block);
  double rest = 1;
  double is_unset = 1;  // probability that a given bit of a word is still 0
  double rate = 0;
  const int most = static_cast<int>(keys_per_block + 20 * std::sqrt(keys_per_block) + 40);
  for (int i = 0; i < most; ++i) {
    rate += chance * std::pow(1 - is_unset, kWords);
    rest -= chance;
    chance *= keys_per_block / (i + 1);
    is_unset *= 63.0 / 64.0;
  }
  return rate + std::max(rest, 0.0);
}

// Maximum number of keys per block for the rate.
double most_load_of_blocks(double rate) {
  double low = 0;
  double high = 600;  // the first Poisson term is still representable, and the rate is near 1
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (rate_of(middle) <= rate ? low : high) = middle;
  }
  return low;
}

int64_t blocks_for(double rate, int64_t planned_keys) {
  const double blocks = std::ceil(static_cast<double>(planned_keys) / most_load_of_blocks(rate));
  return std::max<int64_t>(1, static_cast<int64_t>(blocks));
}

// Every lookup reads another page, so a large filter should be on huge pages: 18 MB of small pages
// need more entries than the second-level TLB has.
void* allocate(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const bool is_large = bytes >= 2 * kHugePage;
  const size_t alignment = is_large ? kHugePage : size_t{BlockedBloom::kBlockBytes};
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // Only advice, so a failure has no effect.
  if (is_large) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace

void BlockedBloom::Free::operator()(void* memory) const { std::free(memory); }

BlockedBloom::BlockedBloom(double rate, int64_t planned_keys, uint64_t seed)
    : BlockedBloom(rate, planned_keys, seed, blocks_for(rate, planned_keys)) {}

BlockedBloom::BlockedBloom(double rate, int64_t planned_keys, uint64_t seed, int64_t num_blocks)
    : rate_(rate),
      planned_keys_(planned_keys),
      seed_(seed),
      num_blocks_(num_blocks),
      blocks_(allocate(static_cast<size_t>(num_blocks * kBlockBytes))) {
  clear();
}

void BlockedBloom::add(const int64_t* keys, int64_t count) {
  active_kernels().bloom_add({keys, count, blocks_.get(), num_blocks_, seed_, nullptr});
  num_added_.fetch_add(count, std::memory_order_relaxed);
}

void BlockedBloom::contains(const SparringExecutor* executor, const int64_t* keys, int64_t count,
                            uint8_t* found) const {
  const BloomArguments arguments{keys, count, blocks_.get(), num_blocks_, seed_, found};
  const LevelKernels& loops = active_kernels();
  parallel_for(executor, count, kGrain, [&](int64_t begin, int64_t end) {
    loops.bloom_contains(arguments, begin, end);
  });
}

void BlockedBloom::clear() {
  std::memset(blocks_.get(), 0, static_cast<size_t>(memory_bytes()));
  num_added_.store(0, std::memory_order_relaxed);
}

std::string BlockedBloom::save() const {
  SavedWriter writer(SavedKind::key_filter, static_cast<size_t>(6 * 8 + memory_bytes()));
  writer.add(kWords);
  writer.add(seed_);
  writer.add(static_cast<uint64_t>(num_blocks_));
  writer.add(static_cast<uint64_t>(planned_keys_));
  writer.add(static_cast<uint64_t>(num_added()));
  writer.add(&rate_, 1);
  writer.add(static_cast<const uint64_t*>(blocks_.get()),
             static_cast<size_t>(num_blocks_ * kWords));
  return writer.finish();
}

std::unique_ptr<BlockedBloom> BlockedBloom::load(std::string_view saved) {
  SavedReader reader(saved, SavedKind::key_filter);
  reader.expect(kWords, "the number of words of a block");
  const uint64_t seed = reader.take();
  const uint64_t num_blocks = reader.take();
  const uint64_t planned_keys = reader.take();
  const uint64_t num_added = reader.take();
  const double rate = reader.take_many<double>(1)[0];
  if (!(rate >= kLeastRate && rate <= kMostRate)) {
    throw std::invalid_argument("their rate of false positives is out of range");
  }
  if (planned_keys < 1 || planned_keys > static_cast<uint64_t>(kMostKeys) ||
      num_added > uint64_t{INT64_MAX}) {
    throw std::invalid_argument("their number of keys is out of range");
  }
  if (num_blocks < 1 || num_blocks > kMostSavedBlocks) {
    throw std::invalid_argument("their number of blocks is out of range");
  }
  const auto words = reader.take_many<uint64_t>(num_blocks * kWords);
  reader.expect_end();
  std::unique_ptr<BlockedBloom> loaded(new BlockedBloom(
      rate, static_cast<int64_t>(planned_keys), seed, static_cast<int64_t>(num_blocks)));
  std::memcpy(loaded->blocks_.get(), words.data(), words.size() * sizeof(uint64_t));
  loaded->num_added_.store(static_cast<int64_t>(num_added), std::memory_order_relaxed);
  return loaded;
}

}  // namespace sparring::kernels
