// The digest scan: a bit for each slot of a bucket whose digest is the given
// one, or 0 for empty slots. Line 0 is read completely; its last 4 bytes are not
// digests and are masked.
#ifndef SPARRING_HKV_TABLE_MATCH_H_
#define SPARRING_HKV_TABLE_MATCH_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "bucket.h"
#include "inline.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace sparring::hkv {

static_assert(std::endian::native == std::endian::little);

// For any processor: 8 digests per word. In `low` a byte has its top bit clear
// exactly if it was zero, so no carry can affect a neighbor.
SPARRING_HKV_INLINE uint64_t match_words(const Bucket* bucket, uint8_t digest) {
  constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7fu;
  const uint64_t sought = 0x0101010101010101u * digest;
  uint64_t mask = 0;
  for (int word = 0; word < 8; ++word) {
    uint64_t bytes;
    std::memcpy(&bytes, reinterpret_cast<const char*>(bucket) + 8 * word, sizeof bytes);
    bytes ^= sought;
    const uint64_t low = ((bytes & kLow) + kLow) | bytes | kLow;
    mask |= (((~low >> 7) * 0x0102040810204080u) >> 56) << (8 * word);
  }
  return mask & kSlotMask;
}

#if defined(__SSE2__)
SPARRING_HKV_INLINE uint64_t match_sse2(const Bucket* bucket, uint8_t digest) {
  const __m128i sought = _mm_set1_epi8(static_cast<char>(digest));
  const auto* bytes = reinterpret_cast<const __m128i*>(bucket);
  uint64_t mask = 0;
  for (int part = 0; part < 4; ++part) {
    const __m128i equal = _mm_cmpeq_epi8(_mm_load_si128(bytes + part), sought);
    mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(equal))) << (16 * part);
  }
  return mask & kSlotMask;
}
#endif

// For code that is compiled for all processors.
SPARRING_HKV_INLINE uint64_t match_digest(const Bucket* bucket, uint8_t digest) {
#if defined(__SSE2__)
  return match_sse2(bucket, digest);
#else
  return match_words(bucket, digest);
#endif
}

SPARRING_HKV_INLINE uint64_t occupied_slots(const Bucket* bucket) {
  return ~match_digest(bucket, 0) & kSlotMask;
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_MATCH_H_
