// The hash functions of core's native/kernels/hash.h, which are part of its formats:
// partitions, and initial values, follow from them. They never change.
#ifndef SPARRING_PACKED_FORMAT_HASH_H_
#define SPARRING_PACKED_FORMAT_HASH_H_

#include <cstdint>
#include <string_view>

namespace sparring::packed {

inline constexpr int kNumPartitions = 4096;

constexpr uint64_t mix64(uint64_t bits) {
  bits ^= bits >> 33;
  bits *= 0xff51afd7ed558ccdu;
  bits ^= bits >> 33;
  bits *= 0xc4ceb9fe1a85ec53u;
  bits ^= bits >> 33;
  return bits;
}

constexpr int partition_of(int64_t key) {
  return static_cast<int>(mix64(static_cast<uint64_t>(key)) >> 52);
}

// FNV-1a, 64 bits.
constexpr uint64_t fnv1a(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_HASH_H_
