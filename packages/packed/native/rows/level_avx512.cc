// The avx512 level; level.h contains the rules.
#include "rows/level.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define SPARRING_LEVEL_LOOPS kAvx512Loops

namespace sparring::packed {
namespace {

using Floats = __m512;
constexpr int kLanes = 16;
constexpr int kTileQueries = 12;
// Forms with a mask, because GCC 12 warns of an uninitialized value inside the forms without one.
constexpr __mmask16 kAll = 0xffff;

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
inline void stream(float* to, Floats value) { _mm512_stream_ps(to, value); }
inline Floats broadcast(float value) { return _mm512_set1_ps(value); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline unsigned at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline Floats widen_half(const uint8_t* from) {
  return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline Floats widen_bfloat(const uint8_t* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m512i words = _mm512_maskz_cvtepu16_epi32(kAll, halves);
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, words, 16));
}
inline Floats widen_bytes(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepu8_epi32(kAll, bytes));
}
inline Floats widen_nibbles(const uint8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
  const __m128i nibbles = _mm_unpacklo_epi8(low, high);
  return _mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepu8_epi32(kAll, nibbles));
}

}  // namespace
}  // namespace sparring::packed

#include "rows/level_rows.inc"

#endif  // defined(__x86_64__)
