// Hashes a key. One 64-bit hash serves the directory (its high bits) and the
// digest (its low 16 bits).
//
// The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", OOPSLA 2014). It is a bijection of 64-bit
// words, so two keys never share a hash; scans rely on that. It differs from the
// mixer with which the engine selects partitions, so that a shard with few
// partitions fills its buckets evenly.
#ifndef SPARRING_HKV_TABLE_HASH_H_
#define SPARRING_HKV_TABLE_HASH_H_

#include <cstdint>

#include "inline.h"

namespace sparring::hkv {

// `seed`: a secret, if ids may be chosen to collide; otherwise 0.
SPARRING_HKV_INLINE uint64_t hash_key(int64_t key, uint64_t seed) {
  uint64_t x = (static_cast<uint64_t>(key) ^ seed) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 1 to 255, evenly distributed; 0 means "empty slot".
SPARRING_HKV_INLINE uint8_t digest_of(uint64_t hash) {
  return static_cast<uint8_t>((((hash & 0xffffu) * 255u) >> 16) + 1u);
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_HASH_H_
