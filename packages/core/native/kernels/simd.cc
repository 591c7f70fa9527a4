#include "kernels/simd.h"

#include <atomic>
#include <cstdlib>

namespace sparring::kernels {
namespace {

struct Level {
  const char* name;
  const LevelKernels* kernels;
  bool is_available;
};

const std::vector<Level>& levels() {
  static const std::vector<Level> all = [] {
    std::vector<Level> found{{"portable", &kPortableKernels, true}};
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl");
    found.push_back({"avx2", &kAvx2Kernels, has_avx2});
    found.push_back({"avx512", &kAvx512Kernels, has_avx512});
#endif
    return found;
  }();
  return all;
}

const Level& level_named(std::string_view name, const char* who) {
  std::string choices;
  for (const Level& level : levels()) {
    if (!level.is_available) continue;
    if (name == level.name) return level;
    choices += (choices.empty() ? "" : ", ") + std::string(level.name);
  }
  throw SimdLevelError(std::string(who) + ": SIMD level '" + std::string(name) +
                       "' is not available here; choose one of " + choices);
}

std::atomic<const Level*> current{nullptr};

const Level& current_level() {
  const Level* level = current.load(std::memory_order_acquire);
  if (level != nullptr) return *level;
  const char* wanted = std::getenv("SPARRING_SIMD");
  if (wanted != nullptr && *wanted != '\0') {
    level = &level_named(wanted, "environment variable SPARRING_SIMD");
  } else {
    for (const Level& candidate : levels()) {
      if (candidate.is_available) level = &candidate;
    }
  }
  // Another thread may have set the level at the same time; its choice is kept.
  const Level* none = nullptr;
  current.compare_exchange_strong(none, level);
  return none != nullptr ? *none : *level;
}

}  // namespace

std::vector<std::string> available_simd_levels() {
  std::vector<std::string> names;
  for (const Level& level : levels()) {
    if (level.is_available) names.emplace_back(level.name);
  }
  return names;
}

std::string simd_level() { return current_level().name; }

void set_simd_level(std::string_view name) {
  current.store(&level_named(name, "set_simd_level"), std::memory_order_release);
}

const LevelKernels& active_kernels() { return *current_level().kernels; }

}  // namespace sparring::kernels
