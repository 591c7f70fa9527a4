// Admits a key in about the k-th step that trained on it, counting in little memory.
//
// A counting Bloom filter (Fan et al., "Summary cache", IEEE/ACM Transactions on
// Networking 8(3), 2000), blocked (Putze, Sanders and Singler, "Cache-, hash- and
// space-efficient Bloom filters", JEA 14, 2009): all counters of a key lie in one
// cache line. A step raises those of a key that are lowest, and the lowest says how
// often the key came at the most wrongly: never too low, so a key is admitted in
// its k-th step or, where others share its counters, earlier.
//
//   blocks_    num_blocks x 64 bytes
//              ┌────────────────────────────────┐
//              │ counter x 64, uint8, saturating │   a key has num_hashes of them
//              └────────────────────────────────┘
//
// INVARIANTS
//   1. The smallest counter of a key is at least the number of steps that it came
//      in, up to 255.
//   2. Which counters a key has is a function of (seed, key) alone.
#ifndef SPARRING_KERNELS_BLOOM_FILTER_H_
#define SPARRING_KERNELS_BLOOM_FILTER_H_

#include <vector>

#include "kernels/admission.h"

namespace sparring::kernels {

class BloomFilter final : public AdmissionFilter {
 public:
  struct Shape {
    int64_t num_blocks;
    int64_t num_hashes;
  };

  // What keeps false positives at `rate` when `expected_keys` distinct keys came.
  // A Bloom filter with the best number of hashes, -log2(rate), has 1.44 counters a
  // key for each of them. Keys fall unevenly into blocks, which matters the more the
  // smaller the rate is: from 1 % on, each further halving costs 1.5 times as many.
  // The factors were found by measuring, and a test watches them.
  // REQUIRES: 0.001 <= rate < 1, expected_keys >= 1.
  static Shape shape_for(double rate, int64_t expected_keys);

  // REQUIRES: 1 <= k <= 255. Throws std::bad_alloc.
  BloomFilter(int64_t k, const Shape& shape, uint64_t seed);

  void admit(const int64_t* keys, int64_t count, int64_t step,
             uint8_t* is_admitted) noexcept override;
  int64_t memory_bytes() const override;
  std::string save() const override;
  void load(std::string_view saved) override;

 private:
  int64_t k_;
  Shape shape_;
  uint64_t seed_;
  std::vector<uint8_t> blocks_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_BLOOM_FILTER_H_
