#include "format/xxh3.h"

#include <cstring>

namespace sparring::packed {
namespace {

constexpr int kStripe = 64;
constexpr int kSecretBytes = 192;
constexpr int kBlock = kStripe * ((kSecretBytes - kStripe) / 8);

constexpr uint64_t kPrime32[3] = {0x9E3779B1u, 0x85EBCA77u, 0xC2B2AE3Du};
constexpr uint64_t kPrime64[5] = {0x9E3779B185EBCA87u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
                                  0x85EBCA77C2B2AE63u, 0x27D4EB2F165667C5u};

// The secret of XXH3 without a seed.
alignas(64) constexpr uint8_t kSecret[kSecretBytes] = {
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

uint64_t read64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, 8);
  return value;
}

void accumulate(uint64_t* sums, const uint8_t* stripe, const uint8_t* secret) {
  for (int i = 0; i < 8; ++i) {
    const uint64_t value = read64(stripe + 8 * i);
    const uint64_t mixed = value ^ read64(secret + 8 * i);
    sums[i ^ 1] += value;
    sums[i] += (mixed & 0xffffffffu) * (mixed >> 32);
  }
}

void scramble(uint64_t* sums) {
  for (int i = 0; i < 8; ++i) {
    uint64_t sum = sums[i];
    sum ^= sum >> 47;
    sum ^= read64(kSecret + kSecretBytes - kStripe + 8 * i);
    sums[i] = sum * kPrime32[0];
  }
}

uint64_t merge(const uint64_t* sums, const uint8_t* secret, uint64_t start) {
  uint64_t result = start;
  for (int i = 0; i < 4; ++i) {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(sums[2 * i] ^ read64(secret + 16 * i)) *
        (sums[2 * i + 1] ^ read64(secret + 16 * i + 8));
    result += static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  result ^= result >> 37;
  result *= 0x165667919E3779F9u;
  return result ^ (result >> 32);
}

}  // namespace

std::string xxh3_128(const void* data, uint64_t size) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint64_t sums[8] = {kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
                      kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]};
  const uint64_t num_blocks = (size - 1) / kBlock;
  for (uint64_t block = 0; block < num_blocks; ++block, at += kBlock) {
    for (int i = 0; i < kBlock / kStripe; ++i) accumulate(sums, at + kStripe * i, kSecret + 8 * i);
    scramble(sums);
  }
  const uint64_t rest = size - num_blocks * kBlock;
  for (uint64_t i = 0; i < (rest - 1) / kStripe; ++i) {
    accumulate(sums, at + kStripe * i, kSecret + 8 * i);
  }
  accumulate(sums, at + rest - kStripe, kSecret + kSecretBytes - kStripe - 7);
  const uint64_t words[2] = {
      merge(sums, kSecret + kSecretBytes - kStripe - 11, ~(size * kPrime64[1])),
      merge(sums, kSecret + 11, size * kPrime64[0])};
  std::string text;
  for (const uint64_t word : words) {
    for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15];
  }
  return text;
}

}  // namespace sparring::packed
