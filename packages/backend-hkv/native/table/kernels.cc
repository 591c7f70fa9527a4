#include "kernels.h"

namespace sparring::hkv {

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kSse2Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> kernels = [] {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_bmi = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    if (has_bmi && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
      found.push_back(&kAvx512Kernels);
    }
    if (has_bmi && __builtin_cpu_supports("avx2")) found.push_back(&kAvx2Kernels);
    found.push_back(&kSse2Kernels);
#endif
    found.push_back(&kPortableKernels);
    return found;
  }();
  return kernels;
}

}  // namespace sparring::hkv
