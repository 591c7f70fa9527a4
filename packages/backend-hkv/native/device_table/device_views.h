// The arguments of a kernel of the device table: the index and the rows, by value. A view
// is valid until the host changes its data; the host orders kernels that use an old view
// before that change.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_VIEWS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_VIEWS_H_

#include <cstdint>

#include "device_bucket.h"

namespace sparring::hkv {

SPARRING_HOST_DEVICE uint64_t reversed_bits(uint64_t word) {
#if defined(__CUDA_ARCH__)
  return __brevll(word);
#else
  word = (word >> 1 & 0x5555555555555555u) | (word & 0x5555555555555555u) << 1;
  word = (word >> 2 & 0x3333333333333333u) | (word & 0x3333333333333333u) << 2;
  word = (word >> 4 & 0x0f0f0f0f0f0f0f0fu) | (word & 0x0f0f0f0f0f0f0f0fu) << 4;
  return __builtin_bswap64(word);
#endif
}

// The upper half of the product of two 64-bit words.
SPARRING_HOST_DEVICE uint64_t multiply_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
#endif
}

struct DeviceIndexView {
  DeviceBuckets heads;
  DeviceBuckets overflow;  // with links, or unused
  uint32_t num_heads;
  bool is_growing;  // if true, num_heads is a power of two
  bool has_chains;
  uint64_t seed;
  // Evicting tables: bucket b may use slots_per_head slots, and the first
  // num_larger_heads buckets one more.
  uint32_t slots_per_head;
  uint32_t num_larger_heads;

  SPARRING_HOST_DEVICE uint64_t hash(int64_t key) const { return hash_key(key, seed); }
  SPARRING_HOST_DEVICE uint32_t head_of(uint64_t hash) const {
    return is_growing ? static_cast<uint32_t>(reversed_bits(hash) & (num_heads - 1u))
                      : static_cast<uint32_t>(multiply_high(hash, num_heads));
  }
  // Number of usable slots of head `number`.
  SPARRING_HOST_DEVICE uint32_t limit(uint32_t number) const {
    return has_chains ? kDeviceSlots : slots_per_head + (number < num_larger_heads ? 1 : 0);
  }
  // REQUIRES: !has_chains.
  SPARRING_HOST_DEVICE uint32_t first_row(uint32_t number) const {
    return number * slots_per_head + (number < num_larger_heads ? number : num_larger_heads);
  }
};

// Rows of one size in chunks: chunks 0 and 1 have 2^first_bits rows, and each following
// one twice as many, up to 2^chunk_bits. Therefore a small table is small, a large one
// grows by a fixed amount, and no row ever moves.
struct DeviceRowsView {
  char* const* chunks;  // device; each points into device or pinned host memory
  uint64_t stride;      // bytes from one row to the next; a multiple of 16 if at least 16
  uint32_t first_bits;
  uint32_t chunk_bits;

  SPARRING_HOST_DEVICE uint32_t chunk_of(uint32_t number) const {
    if (number >> chunk_bits != 0) return (number >> chunk_bits) + (chunk_bits - first_bits);
    uint32_t chunk = 0;
    for (uint32_t rest = number >> first_bits; rest != 0; rest >>= 1) ++chunk;
    return chunk;
  }
  // The number of the first row of the chunk.
  SPARRING_HOST_DEVICE uint64_t chunk_start(uint64_t chunk) const {
    if (chunk > chunk_bits - first_bits) {
      return (chunk - (chunk_bits - first_bits)) << chunk_bits;
    }
    return chunk == 0 ? 0 : uint64_t{1} << (first_bits + chunk - 1);
  }

  SPARRING_DEVICE char* at(uint32_t number) const {
    uint32_t chunk = number >> chunk_bits;
    uint64_t begin = 0;
    if (chunk != 0) {
      begin = uint64_t{chunk} << chunk_bits;
      chunk += chunk_bits - first_bits;
    } else if (const uint32_t high = number >> first_bits; high != 0) {
      chunk = 32 - device::leading_zeros(high);
      begin = uint64_t{1} << (first_bits + chunk - 1);
    }
    return chunks[chunk] + (number - begin) * stride;
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_VIEWS_H_
