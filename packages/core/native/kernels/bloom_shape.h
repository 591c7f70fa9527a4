// The required size of a blocked counting Bloom filter.
//
// A key uses `num_hashes` counters of one block of B = 128, drawn with replacement.
// Its count can only be too high if other keys use every one of its counters too, that
// is, if a plain Bloom filter of the same shape would report it as a member. With n
// other keys over `num_blocks` blocks, the number of keys in its block is binomial. The
// Poisson distribution with mean n / num_blocks is an upper bound, so
//
//   rate = sum over i of Poisson(i; n / num_blocks) * inner(i)
//
// (Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom filters",
// ACM JEA 14, 2009, formula 3). The probability inside a block is exact here, not the usual
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
  int64_t expected_keys;  // maximum for the rate

  // The smallest shape for a rate. REQUIRES: kLeastRate <= rate < 1, expected_keys >= 1.
  static BloomShape for_keys(double rate, int64_t expected_keys);

  // The shape with most keys for a number of blocks. REQUIRES: kLeastRate <= rate < 1, num_blocks >= 1.
  static BloomShape for_blocks(double rate, int64_t num_blocks);
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_BLOOM_SHAPE_H_
