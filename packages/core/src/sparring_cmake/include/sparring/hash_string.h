// The id of a string: XXH3, 64 bits, without a seed, of its bytes.
//
// The keys of a table are int64. `hash_string` converts strings to ids, identically in training and in
// a server: `sparring.hash_strings` in Python and `sparring_hash_string` in C are this function. It
// is part of the format and never changes; docs/reference/hash-of-strings.md lists test values. It
// requires only this header and a little-endian machine.
//
// Source of the algorithm: Collet, "xxHash", XXH3_64bits; the secret is the library's default.
#ifndef SPARRING_HASH_STRING_H_
#define SPARRING_HASH_STRING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sparring {
namespace xxh3 {

inline constexpr int kStripe = 64;
inline constexpr int kSecretBytes = 192;
inline constexpr int kBlock = kStripe * ((kSecretBytes - kStripe) / 8);

inline constexpr uint64_t kPrime32[3] = {0x9E3779B1u, 0x85EBCA77u, 0xC2B2AE3Du};
inline constexpr uint64_t kPrime64[5] = {0x9E3779B185EBCA87u, 0xC2B2AE3D27D4EB4Fu,
                                         0x165667B19E3779F9u, 0x85EBCA77C2B2AE63u,
                                         0x27D4EB2F165667C5u};

alignas(64) inline constexpr uint8_t kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

template <class T>
inline T read(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline uint64_t rotated(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

inline uint64_t folded_product(uint64_t left, uint64_t right) {
  __extension__ typedef unsigned __int128 Wide;
  const Wide product = static_cast<Wide>(left) * right;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t avalanche(uint64_t word) {
  word ^= word >> 37;
  word *= 0x165667919E3779F9u;
  return word ^ word >> 32;
}

inline uint64_t avalanche_of_xxh64(uint64_t word) {
  word ^= word >> 33;
  word *= kPrime64[1];
  word ^= word >> 29;
  word *= kPrime64[2];
  return word ^ word >> 32;
}

inline uint64_t mixed_16(const uint8_t* at, const uint8_t* secret) {
  return folded_product(read<uint64_t>(at) ^ read<uint64_t>(secret),
                        read<uint64_t>(at + 8) ^ read<uint64_t>(secret + 8));
}

inline uint64_t of_up_to_16(const uint8_t* at, uint64_t size) {
  if (size > 8) {
    const uint64_t low = read<uint64_t>(at) ^ read<uint64_t>(kSecret + 24) ^
                         read<uint64_t>(kSecret + 32);
    const uint64_t high = read<uint64_t>(at + size - 8) ^ read<uint64_t>(kSecret + 40) ^
                          read<uint64_t>(kSecret + 48);
    return avalanche(size + __builtin_bswap64(low) + high + folded_product(low, high));
  }
  if (size >= 4) {
    uint64_t word = read<uint32_t>(at + size - 4) + (uint64_t{read<uint32_t>(at)} << 32);
    word ^= read<uint64_t>(kSecret + 8) ^ read<uint64_t>(kSecret + 16);
    word ^= rotated(word, 49) ^ rotated(word, 24);
    word *= 0x9FB21C651E98DF25u;
    word ^= (word >> 35) + size;
    word *= 0x9FB21C651E98DF25u;
    return word ^ word >> 28;
  }
  if (size == 0) {
    return avalanche_of_xxh64(read<uint64_t>(kSecret + 56) ^ read<uint64_t>(kSecret + 64));
  }
  const uint64_t word = uint64_t{at[0]} << 16 | uint64_t{at[size >> 1]} << 24 | at[size - 1] |
                        size << 8;
  return avalanche_of_xxh64(word ^ read<uint32_t>(kSecret) ^ read<uint32_t>(kSecret + 4));
}

inline uint64_t of_17_to_240(const uint8_t* at, uint64_t size) {
  uint64_t sum = size * kPrime64[0];
  if (size <= 128) {
    for (uint64_t i = (size - 1) / 32 + 1; i-- > 0;) {
      sum += mixed_16(at + 16 * i, kSecret + 32 * i);
      sum += mixed_16(at + size - 16 * (i + 1), kSecret + 32 * i + 16);
    }
    return avalanche(sum);
  }
  for (uint64_t i = 0; i < 8; ++i) sum += mixed_16(at + 16 * i, kSecret + 16 * i);
  uint64_t last = mixed_16(at + size - 16, kSecret + 136 - 17);
  sum = avalanche(sum);
  for (uint64_t i = 8; i < size / 16; ++i) {
    last += mixed_16(at + 16 * i, kSecret + 16 * (i - 8) + 3);
  }
  return avalanche(sum + last);
}

inline void accumulate(uint64_t* sums, const uint8_t* stripe, const uint8_t* secret) {
  for (int i = 0; i < 8; ++i) {
    const uint64_t value = read<uint64_t>(stripe + 8 * i);
    const uint64_t mixed = value ^ read<uint64_t>(secret + 8 * i);
    sums[i ^ 1] += value;
    sums[i] += (mixed & 0xffffffffu) * (mixed >> 32);
  }
}

inline void scramble(uint64_t* sums) {
  for (int i = 0; i < 8; ++i) {
    uint64_t sum = sums[i];
    sum ^= sum >> 47;
    sum ^= read<uint64_t>(kSecret + kSecretBytes - kStripe + 8 * i);
    sums[i] = sum * kPrime32[0];
  }
}

inline uint64_t merged(const uint64_t* sums, const uint8_t* secret, uint64_t start) {
  for (int i = 0; i < 4; ++i) {
    start += folded_product(sums[2 * i] ^ read<uint64_t>(secret + 16 * i),
                            sums[2 * i + 1] ^ read<uint64_t>(secret + 16 * i + 8));
  }
  return avalanche(start);
}

// The eight sums of inputs over 240 bytes, which the hashes of 64 and of 128 bits share. Calls
// after_block(number) after each block of `kBlock` bytes.
template <class AfterBlock>
inline void sum_stripes(const uint8_t* at, uint64_t size, uint64_t (&sums)[8],
                        const AfterBlock& after_block) {
  const uint64_t initial[8] = {kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
                               kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]};
  std::memcpy(sums, initial, sizeof initial);
  const uint64_t num_blocks = (size - 1) / kBlock;
  for (uint64_t block = 0; block < num_blocks; ++block, at += kBlock) {
    for (int i = 0; i < kBlock / kStripe; ++i) accumulate(sums, at + kStripe * i, kSecret + 8 * i);
    scramble(sums);
    after_block(block);
  }
  const uint64_t rest = size - num_blocks * kBlock;
  for (uint64_t i = 0; i < (rest - 1) / kStripe; ++i) {
    accumulate(sums, at + kStripe * i, kSecret + 8 * i);
  }
  accumulate(sums, at + rest - kStripe, kSecret + kSecretBytes - kStripe - 7);
}

}  // namespace xxh3

// Returns the id of a string of `size` bytes, which are UTF-8 if it is text. `bytes` may be NULL if
// `size` is 0.
inline int64_t hash_string(const char* bytes, size_t size) {
  const auto* at = reinterpret_cast<const uint8_t*>(bytes);
  if (size <= 16) return static_cast<int64_t>(xxh3::of_up_to_16(at, size));
  if (size <= 240) return static_cast<int64_t>(xxh3::of_17_to_240(at, size));
  uint64_t sums[8];
  xxh3::sum_stripes(at, size, sums, [](uint64_t) {});
  return static_cast<int64_t>(xxh3::merged(sums, xxh3::kSecret + 11, size * xxh3::kPrime64[0]));
}

}  // namespace sparring

#endif  // SPARRING_HASH_STRING_H_
