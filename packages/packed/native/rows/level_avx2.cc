// The avx2 level; level.h contains the rules.
#include "rows/level.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define SPARRING_LEVEL_LOOPS kAvx2Loops

namespace sparring::packed {
namespace {

using Floats = __m256;
constexpr int kLanes = 8;
constexpr int kTileQueries = 6;

inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Floats value) { _mm256_storeu_ps(to, value); }
inline void stream(float* to, Floats value) { _mm256_stream_ps(to, value); }
inline Floats broadcast(float value) { return _mm256_set1_ps(value); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline unsigned at_least(Floats a, Floats b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
inline Floats widen_half(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Floats widen_bfloat(const uint8_t* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Floats widen_bytes(const uint8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
inline Floats widen_nibbles(const uint8_t* from) {
  int32_t word;
  __builtin_memcpy(&word, from, 4);
  // Lane i gets nibble i, the lowest first.
  const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  const __m256i nibbles =
      _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(word), shifts), _mm256_set1_epi32(15));
  return _mm256_cvtepi32_ps(nibbles);
}

}  // namespace
}  // namespace sparring::packed

#include "rows/level_rows.inc"

#endif  // defined(__x86_64__)
