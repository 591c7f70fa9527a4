// For any processor, without intrinsics.
#include "hash.h"
#include "kernels.h"
#include "match.h"

namespace sparring::hkv {
namespace {
namespace portable {

static inline uint64_t match(const Bucket* bucket, uint8_t digest) {
  return match_words(bucket, digest);
}

struct Vector {
  static constexpr uint64_t kBytes = 16;
  static constexpr uint64_t kStreamAlignment = 16;
  static void copy(char* to, const char* from) { __builtin_memcpy(to, from, kBytes); }
  static void stream(char* to, const char* from) { copy(to, from); }
  static void fence() {}
};

#include "kernel_body.h"

}  // namespace portable
}  // namespace

extern const Kernels kPortableKernels;
const Kernels kPortableKernels = {"portable", portable::locate, portable::find, portable::visit, portable::gather,
                                  portable::scatter};

}  // namespace sparring::hkv
