// Compiled with AVX2, BMI and BMI2; called only if the processor supports them.
#include <immintrin.h>

#include "hash.h"
#include "kernels.h"

namespace sparring::hkv {
namespace {
namespace avx2 {

static inline uint64_t match(const Bucket* bucket, uint8_t digest) {
  const __m256i sought = _mm256_set1_epi8(static_cast<char>(digest));
  const auto* bytes = reinterpret_cast<const __m256i*>(bucket);
  const __m256i low = _mm256_cmpeq_epi8(_mm256_load_si256(bytes), sought);
  const __m256i high = _mm256_cmpeq_epi8(_mm256_load_si256(bytes + 1), sought);
  const auto low_mask = static_cast<uint32_t>(_mm256_movemask_epi8(low));
  const auto high_mask = static_cast<uint32_t>(_mm256_movemask_epi8(high));
  return (static_cast<uint64_t>(high_mask) << 32 | low_mask) & kSlotMask;
}

struct Vector {
  static constexpr uint64_t kBytes = 32;
  // NumPy arrays are aligned to 16 bytes, so streaming stores are done in halves.
  static constexpr uint64_t kStreamAlignment = 16;
  static __m256i load(const char* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void copy(char* to, const char* from) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), load(from));
  }
  static void stream(char* to, const char* from) {
    const __m256i both = load(from);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(both));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + 1, _mm256_extracti128_si256(both, 1));
  }
  static void fence() { _mm_sfence(); }
};

#include "kernel_body.h"

}  // namespace avx2
}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {"avx2", avx2::locate, avx2::find, avx2::visit, avx2::gather, avx2::scatter};

}  // namespace sparring::hkv
