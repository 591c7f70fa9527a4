// Adversarial keys: their hashes share the first bits.
#ifndef SPARRING_HKV_TESTING_COLLIDING_KEYS_H_
#define SPARRING_HKV_TESTING_COLLIDING_KEYS_H_

#include <cstdint>
#include <vector>

#include "check.h"
#include "hash.h"

namespace sparring::hkv::testing {

// The key with this hash: the inverse of hash_key for seed 0.
inline int64_t key_of_hash(uint64_t hash) {
  const auto undo_shift = [](uint64_t x, int shift) {
    uint64_t result = x;
    for (int done = shift; done < 64; done += shift) result = x ^ (result >> shift);
    return result;
  };
  uint64_t x = undo_shift(hash, 31) * 0x319642b2d24d8ec3u;
  x = undo_shift(x, 27) * 0x96de1b173f119089u;
  const auto key = static_cast<int64_t>(undo_shift(x, 30) - 0x9e3779b97f4a7c15u);
  CHECK(hash_key(key, 0) == hash);
  return key;
}

// Returns `count` keys whose hashes share their first `bits` bits.
inline std::vector<int64_t> colliding_keys(uint64_t count, uint32_t bits, uint64_t prefix = 0x5a) {
  std::vector<int64_t> keys;
  const uint64_t free_bits = 64 - bits;
  CHECK(count >> free_bits == 0);
  for (uint64_t i = 0; i < count; ++i) {
    // An odd factor makes this a permutation of the free bits.
    const uint64_t low = (i * 0x9e3779b97f4a7c15u) & (~uint64_t{0} >> bits);
    keys.push_back(key_of_hash((prefix << free_bits) | low));
  }
  return keys;
}

}  // namespace sparring::hkv::testing

#endif  // SPARRING_HKV_TESTING_COLLIDING_KEYS_H_
