// Admits a key in the k-th step that trained on it, or erroneously earlier, with small
// counters.
//
// A counting Bloom filter (Fan et al., "Summary cache", IEEE/ACM Transactions on
// Networking 8(3), 2000), blocked (Putze, Sanders and Singler, ACM JEA 14, 2009): all
// counters of a key are in one or two cache lines. Only the lowest counters of a key
// are incremented (minimal increase: Cohen and Matias, "Spectral Bloom filters", SIGMOD
// 2003). The lowest counter is an upper bound of the number of steps with the key.
//
//   counters_   num_blocks blocks, each at an address that 64 divides
//               k <= 16   ┌─────────────────────────────┐
//                         │ 128 x 4 bits, low half first│  64 bytes
//               k <= 256  ├─────────────────────────────┤
//                         │ 128 x 8 bits                │  128 bytes
//                         └─────────────────────────────┘
//
// A key's block is the upper 64 bits of first * num_blocks, first = mix64(key ^ seed).
// The index of each of its counters has 7 bits: 9 indices from mix64(first + c), lowest bits
// first, then from mix64(first + 2c), with c = 0x9e3779b97f4a7c15. This is part of the format.
//
// INVARIANTS
//   1. The lowest counter of a key is at least the number of steps recorded for it, limited
//      to k - 1. Therefore a key is never admitted later than in its k-th step.
//   2. A counter that only one key uses is at most the number of steps recorded for it.
//      Therefore a key can only be admitted too early if other keys use each of its
//      counters; bloom_shape.h computes the probability.
//   3. No counter exceeds k - 1, which is sufficient, and which fits into its bits.
//   4. Counters are never decremented. Beyond the expected number of keys, the rate grows.
//   5. k = 1 has no counters.
#ifndef SPARRING_KERNELS_BLOOM_FILTER_H_
#define SPARRING_KERNELS_BLOOM_FILTER_H_

#include <memory>
#include <vector>

#include "kernels/admission.h"
#include "kernels/bloom_shape.h"

namespace sparring::kernels {

class BloomFilter final : public AdmissionFilter {
 public:
  static constexpr int64_t kMostK = 256;
  static constexpr int64_t block_bytes(int64_t k) { return k <= 16 ? 64 : 128; }

  // REQUIRES: 1 <= k <= kMostK. Throws std::bad_alloc.
  BloomFilter(int64_t k, const BloomShape& shape, uint64_t seed);

  int64_t expected_keys() const { return shape_.expected_keys; }

 private:
  class Counters;  // of one key

  struct Free {
    void operator()(uint8_t* memory) const;
  };

  void decide_impl(const int64_t* keys, int64_t count, int64_t step,
                   uint8_t* is_admitted) const override;
  void record_impl(const int64_t* keys, const uint8_t* is_admitted, int64_t count) override;
  int64_t memory_bytes_impl() const override { return num_bytes_; }
  std::string save_impl() const override;
  void load_impl(std::string_view saved) override;
  void join_impl(std::string_view saved) override;
  // Reads the counters of an equal filter.
  std::vector<uint8_t> read(std::string_view saved) const;

  const int64_t k_;
  const BloomShape shape_;
  const uint64_t seed_;
  const int64_t num_bytes_;
  std::unique_ptr<uint8_t, Free> memory_;
  uint8_t* counters_ = nullptr;  // within memory_
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_BLOOM_FILTER_H_
