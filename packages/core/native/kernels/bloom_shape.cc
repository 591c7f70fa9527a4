#include "kernels/bloom_shape.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sparring::kernels {
namespace {

constexpr int64_t kCounters = BloomShape::kBlockCounters;
// A block with more keys than this is practically full.
constexpr int64_t kMostKeys = 256;

// inner(i) for i in [0, kMostKeys), for every number of hashes from 1.
std::vector<std::vector<double>> inner_rates() {
  std::vector<std::vector<double>> rates(BloomShape::kMostHashes + 1,
                                         std::vector<double>(kMostKeys, 1.0));
  std::vector<double> is_hit(kCounters + 1, 0.0);  // probability that X is 0, 1, …
  is_hit[0] = 1;
  for (int64_t draws = 0; draws < BloomShape::kMostHashes * kMostKeys; ++draws) {
    for (int64_t hashes = 1; hashes <= BloomShape::kMostHashes; ++hashes) {
      if (draws % hashes != 0 || draws / hashes >= kMostKeys) continue;
      double rate = 0;
      for (int64_t x = 0; x <= kCounters; ++x) {
        rate += is_hit[x] * std::pow(static_cast<double>(x) / kCounters, hashes);
      }
      rates[hashes][draws / hashes] = rate;
    }
    for (int64_t x = kCounters; x > 0; --x) {
      is_hit[x] = (is_hit[x] * x + is_hit[x - 1] * (kCounters - x + 1)) / kCounters;
    }
    is_hit[0] = 0;
  }
  return rates;
}

double rate_of(const std::vector<double>& inner, double keys_per_block) {
  double chance = std::exp(-keys_per_block);
  double rest = 1;
  double rate = 0;
  for (int64_t i = 0; i < kMostKeys; ++i) {
    rate += chance * inner[i];
    rest -= chance;
    chance *= keys_per_block / static_cast<double>(i + 1);
  }
  return rate + std::max(rest, 0.0);
}

struct Load {
  double keys_per_block = 0;
  int64_t num_hashes = 1;
};

// Maximum number of keys per block for the rate.
Load most_load(double rate) {
  static const std::vector<std::vector<double>> inner = inner_rates();
  Load best;
  for (int64_t hashes = 1; hashes <= BloomShape::kMostHashes; ++hashes) {
    double low = 0;
    double high = kCounters;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (rate_of(inner[hashes], middle) <= rate ? low : high) = middle;
    }
    if (low > best.keys_per_block) best = {low, hashes};
  }
  return best;
}

}  // namespace

BloomShape BloomShape::for_keys(double rate, int64_t expected_keys) {
  const Load load = most_load(rate);
  const double blocks = std::ceil(static_cast<double>(expected_keys) / load.keys_per_block);
  return {std::max<int64_t>(1, static_cast<int64_t>(blocks)), load.num_hashes, expected_keys};
}

BloomShape BloomShape::for_blocks(double rate, int64_t num_blocks) {
  const Load load = most_load(rate);
  return {num_blocks, load.num_hashes,
          static_cast<int64_t>(static_cast<double>(num_blocks) * load.keys_per_block)};
}

}  // namespace sparring::kernels
