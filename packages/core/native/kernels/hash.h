// The hash functions that are part of the format: a partition, and so an owner
// and a file of a snapshot, follows from them. They never change.
#ifndef SPARRING_KERNELS_HASH_H_
#define SPARRING_KERNELS_HASH_H_

#include <cstdint>
#include <string_view>

namespace sparring::kernels {

// Partitions of a table's key space, fixed for ever.
inline constexpr int kNumPartitions = 4096;
inline constexpr int kPartitionBits = 12;

// A bijection of 64 bits in which every input bit moves every output bit: the
// finaliser of MurmurHash3 (Appleby, public domain).
constexpr uint64_t mix64(uint64_t bits) {
  bits ^= bits >> 33;
  bits *= 0xff51afd7ed558ccdu;
  bits ^= bits >> 33;
  bits *= 0xc4ceb9fe1a85ec53u;
  bits ^= bits >> 33;
  return bits;
}

// The partition of a key: the top 12 bits of mix64(key), 0 to 4,095.
constexpr int partition_of(int64_t key) {
  return static_cast<int>(mix64(static_cast<uint64_t>(key)) >> (64 - kPartitionBits));
}

// FNV-1a, 64 bits (Fowler, Noll, Vo), of the UTF-8 bytes of a table's name.
constexpr uint64_t table_hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : name) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_HASH_H_
