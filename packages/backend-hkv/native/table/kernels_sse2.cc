// For every x86-64 processor.
#include <emmintrin.h>

#include "hash.h"
#include "kernels.h"
#include "match.h"

namespace sparring::hkv {
namespace {
namespace sse2 {

static inline uint64_t match(const Bucket* bucket, uint8_t digest) {
  return match_sse2(bucket, digest);
}

struct Vector {
  static constexpr uint64_t kBytes = 16;
  static constexpr uint64_t kStreamAlignment = 16;
  static __m128i load(const char* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static void copy(char* to, const char* from) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), load(from));
  }
  static void stream(char* to, const char* from) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), load(from));
  }
  static void fence() { _mm_sfence(); }
};

#include "kernel_body.h"

}  // namespace sse2
}  // namespace

extern const Kernels kSse2Kernels;
const Kernels kSse2Kernels = {"sse2", sse2::locate, sse2::find, sse2::visit, sse2::gather, sse2::scatter};

}  // namespace sparring::hkv
