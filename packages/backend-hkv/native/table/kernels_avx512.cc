// Compiled with AVX-512 F, BW, VL, BMI and BMI2; called only if the processor
// supports them.
#include <immintrin.h>

#include "hash.h"
#include "kernels.h"

namespace sparring::hkv {
namespace {
namespace avx512 {

static inline uint64_t match(const Bucket* bucket, uint8_t digest) {
  const __m512i digests = _mm512_load_si512(bucket);
  return _mm512_cmpeq_epi8_mask(digests, _mm512_set1_epi8(static_cast<char>(digest))) & kSlotMask;
}

struct Vector {
  static constexpr uint64_t kBytes = 64;
  // NumPy arrays are aligned to 16 bytes, so streaming stores are done in quarters.
  static constexpr uint64_t kStreamAlignment = 16;
  static void copy(char* to, const char* from) {
    _mm512_storeu_si512(to, _mm512_loadu_si512(from));
  }
  static void stream(char* to, const char* from) {
    auto* out = reinterpret_cast<__m128i*>(to);
    const auto* in = reinterpret_cast<const __m256i*>(from);
    for (int half = 0; half < 2; ++half) {
      const __m256i both = _mm256_loadu_si256(in + half);
      _mm_stream_si128(out + 2 * half, _mm256_castsi256_si128(both));
      _mm_stream_si128(out + 2 * half + 1, _mm256_extracti128_si256(both, 1));
    }
  }
  static void fence() { _mm_sfence(); }
};

#include "kernel_body.h"

}  // namespace avx512
}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {"avx512", avx512::locate, avx512::find, avx512::visit, avx512::gather,
                                avx512::scatter};

}  // namespace sparring::hkv
