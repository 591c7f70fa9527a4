// A set of keys without false negatives, and with few false positives.
//
// A Bloom filter (Bloom, CACM 13(7), 1970), blocked (Putze, Sanders and Singler, ACM JEA
// 14, 2009): all bits of a key are in one cache line, so that a lookup costs one cache
// miss. A block has eight words, and a key has one bit in each, so that a block is read as
// one vector.
//
//   blocks_   num_blocks blocks, each at an address that 64 divides
//             ┌────────┬────────┬── ─ ─ ──┬────────┐
//             │ word 0 │ word 1 │         │ word 7 │   8 x 64 bits
//             └────────┴────────┴── ─ ─ ──┴────────┘
//
// With first = mix64(key ^ seed), a key's block is the upper 64 bits of first * num_blocks.
// Its bit of word j is bits 6 j to 6 j + 5 of mix64(first + 0x9e3779b97f4a7c15). This is
// part of the format (docs/format/bloom.md).
//
// With n keys over b blocks, the number of keys in a block has a Poisson distribution with mean
// n / b (an upper bound for the exact binomial distribution), and
//
//   rate = sum over i of Poisson(i; n / b) * (1 - (63/64)^i)^8
//
// INVARIANTS
//   1. A key that was added is contained, until clear.
//   2. Bits are only set, except in clear and load.
//   3. All levels of simd.h compute the same bits and the same results.
//
// Threads: one writer (`add`, `clear`) at a time. `contains` may run concurrently with `add`,
// and returns true for keys whose `add` has returned.
#ifndef SPARRING_KERNELS_BLOCKED_BLOOM_H_
#define SPARRING_KERNELS_BLOCKED_BLOOM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sparring/storage_abi.h"

namespace sparring::kernels {

class BlockedBloom {
 public:
  static constexpr int64_t kBlockBytes = 64;
  static constexpr double kLeastRate = 1e-6;
  static constexpr double kMostRate = 0.5;
  static constexpr int64_t kMostKeys = int64_t{1} << 40;

  // The smallest filter whose false positive rate is at most `rate` with `planned_keys` distinct keys.
  // REQUIRES: kLeastRate <= rate <= kMostRate, 1 <= planned_keys <= kMostKeys. Throws
  // std::bad_alloc.
  BlockedBloom(double rate, int64_t planned_keys, uint64_t seed);

  // keys (n) int64, in any order; they may repeat.
  void add(const int64_t* keys, int64_t count);
  // found (n): 1 if the key may be in the set.
  void contains(const SparringExecutor* executor, const int64_t* keys, int64_t count,
                uint8_t* found) const;
  void clear();

  double rate() const { return rate_; }
  int64_t planned_keys() const { return planned_keys_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t memory_bytes() const { return num_blocks_ * kBlockBytes; }
  // Number of keys passed to `add`, including repeats.
  int64_t num_added() const { return num_added_.load(std::memory_order_relaxed); }

  // See docs/format/bloom.md. `load` throws std::invalid_argument for any other bytes.
  std::string save() const;
  static std::unique_ptr<BlockedBloom> load(std::string_view saved);

 private:
  BlockedBloom(double rate, int64_t planned_keys, uint64_t seed, int64_t num_blocks);

  struct Free {
    void operator()(void* memory) const;
  };

  const double rate_;
  const int64_t planned_keys_;
  const uint64_t seed_;
  const int64_t num_blocks_;
  std::atomic<int64_t> num_added_{0};
  std::unique_ptr<void, Free> blocks_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_BLOCKED_BLOOM_H_
