// How a key becomes a place. One 64-bit hash serves the directory (its high
// bits) and the digest (its low 16 bits).
//
// The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", OOPSLA 2014). It is a bijection of 64-bit
// words, so two keys never share a hash: scans rely on that. It is not the
// mixer by which the engine picks partitions, so that a shard which owns few
// partitions still fills its buckets evenly.
#ifndef SPARRING_HKV_TABLE_HASH_H_
#define SPARRING_HKV_TABLE_HASH_H_

#include <cstdint>

#include "inline.h"

namespace sparring::hkv {

// `seed`: a secret where ids may be chosen so that they collide; 0 otherwise.
SPARRING_HKV_INLINE uint64_t hash_key(int64_t key, uint64_t seed) {
  uint64_t x = (static_cast<uint64_t>(key) ^ seed) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// 1 to 255, evenly; 0 is left to mean "empty slot".
SPARRING_HKV_INLINE uint8_t digest_of(uint64_t hash) {
  return static_cast<uint8_t>((((hash & 0xffffu) * 255u) >> 16) + 1u);
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_HASH_H_
