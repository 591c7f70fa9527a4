// Operations on bits and bytes of words: one instruction each on a GPU, plain C++ elsewhere.
#ifndef SPARRING_HKV_DEVICE_BITS_H_
#define SPARRING_HKV_DEVICE_BITS_H_

#include <cstdint>

#if !defined(__CUDACC__)
#include <bit>
#endif

#include "macros.h"

namespace sparring::device {

SPARRING_DEVICE unsigned num_ones(uint32_t word) {
#if defined(__CUDACC__)
  return static_cast<unsigned>(__popc(word));
#else
  return static_cast<unsigned>(std::popcount(word));
#endif
}

// Index of the lowest set bit. REQUIRES: word != 0.
SPARRING_DEVICE unsigned lowest_one(uint32_t word) {
#if defined(__CUDACC__)
  return static_cast<unsigned>(__ffs(static_cast<int>(word)) - 1);
#else
  return static_cast<unsigned>(std::countr_zero(word));
#endif
}

SPARRING_DEVICE unsigned leading_zeros(uint32_t word) {
#if defined(__CUDACC__)
  return static_cast<unsigned>(__clz(static_cast<int>(word)));
#else
  return static_cast<unsigned>(std::countl_zero(word));
#endif
}

// Index of the set bit with `rank` set bits below it. REQUIRES: rank < num_ones(word).
SPARRING_DEVICE unsigned nth_one(uint32_t word, unsigned rank) {
  unsigned at = 0;
  for (unsigned width = 16; width != 0; width /= 2) {
    const unsigned below = num_ones(word >> at & ((1u << width) - 1));
    if (rank < below) continue;
    rank -= below;
    at += width;
  }
  return at;
}

// 0xff in each byte in which the words are equal, otherwise 0.
SPARRING_DEVICE uint32_t equal_bytes(uint32_t left, uint32_t right) {
#if defined(__CUDACC__)
  return __vcmpeq4(left, right);
#else
  uint32_t result = 0;
  for (unsigned shift = 0; shift < 32; shift += 8)
    if (((left >> shift) & 0xffu) == ((right >> shift) & 0xffu)) result |= 0xffu << shift;
  return result;
#endif
}

// A word whose four bytes are all `byte`.
SPARRING_DEVICE uint32_t repeated_byte(uint8_t byte) { return byte * 0x01010101u; }

// Mask of the lanes below this one.
SPARRING_DEVICE uint32_t lanes_below(unsigned lane) { return (uint32_t{1} << lane) - 1u; }

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_BITS_H_
