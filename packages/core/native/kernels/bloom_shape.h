// How large a blocked counting Bloom filter must be.
//
// A key owns `num_hashes` counters of one block of B = 128, drawn with replacement.
// It can only be counted too high if other keys own every one of its counters as
// well: that is, if a plain Bloom filter of the same shape would take it for a
// member. With n other keys over `num_blocks` blocks, the number of those in its
// block is binomial, which Poisson's distribution of mean n / num_blocks bounds, so
//
//   rate = sum over i of Poisson(i; n / num_blocks) * inner(i)
//
// (Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters",
// ACM JEA 14, 2009, formula 3). The chance inside a block is exact here, not the usual
// (1 - e^(-hi/B))^h, which is too low for so few counters (Bose et al., "On the
// false-positive rate of Bloom filters", IPL 108(4), 2008):
//
//   inner(i) = E[(X / B)^h],  X: distinct counters that h * i draws hit
#ifndef SPARRING_KERNELS_BLOOM_SHAPE_H_
#define SPARRING_KERNELS_BLOOM_SHAPE_H_

#include <cstdint>

namespace sparring::kernels {

struct BloomShape {
  static constexpr int64_t kBlockCounters = 128;
  static constexpr int64_t kMostHashes = 16;
  static constexpr double kLeastRate = 1e-9;

  int64_t num_blocks;
  int64_t num_hashes;
  int64_t expected_keys;  // that keep to the rate

  // The smallest for a rate. REQUIRES: kLeastRate <= rate < 1, expected_keys >= 1.
  static BloomShape for_keys(double rate, int64_t expected_keys);

  // The one for most keys, of some blocks. REQUIRES: kLeastRate <= rate < 1, num_blocks >= 1.
  static BloomShape for_blocks(double rate, int64_t num_blocks);
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_BLOOM_SHAPE_H_
