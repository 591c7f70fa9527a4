#include "rows/simd.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

struct Level {
  const char* name;
  const RowLoops* loops;
  bool is_available;
};

constexpr int kNumLevels = 3;

#if defined(__x86_64__)
// Detected separately, because clang's __builtin_cpu_supports does not support it.
bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

const Level* levels() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                               has_f16c();
  static const bool has_avx512 =
      has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const Level all[kNumLevels] = {{"portable", &kPortableLoops, true},
                                        {"avx2", &kAvx2Loops, has_avx2},
                                        {"avx512", &kAvx512Loops, has_avx512}};
#else
  static const Level all[kNumLevels] = {{"portable", &kPortableLoops, true},
                                        {"avx2", nullptr, false},
                                        {"avx512", nullptr, false}};
#endif
  return all;
}

const Level* level_named(std::string_view name) {
  for (int i = 0; i < kNumLevels; ++i) {
    if (levels()[i].is_available && name == levels()[i].name) return levels() + i;
  }
  return nullptr;
}

std::atomic<const Level*> current{nullptr};

const Level& current_level() {
  const Level* level = current.load(std::memory_order_acquire);
  if (level != nullptr) return *level;
  const char* const wanted = std::getenv("SPARRING_SIMD");
  if (wanted != nullptr && *wanted != '\0') {
    level = level_named(wanted);
    if (level == nullptr) {
      border::refuse("environment variable SPARRING_SIMD: level '" + std::string(wanted) +
                     "' is not available here; unset it, or choose portable, avx2 or avx512");
    }
  } else {
    for (int i = 0; i < kNumLevels; ++i) {
      if (levels()[i].is_available) level = levels() + i;
    }
  }
  // Another thread may have set the level in the meantime, which then remains.
  const Level* none = nullptr;
  current.compare_exchange_strong(none, level);
  return none != nullptr ? *none : *level;
}

}  // namespace

const RowLoops& row_loops() { return *current_level().loops; }

const char* simd_level() { return current_level().name; }

bool set_simd_level(const char* name) {
  const Level* const level = level_named(name);
  if (level != nullptr) current.store(level, std::memory_order_release);
  return level != nullptr;
}

}  // namespace sparring::packed
