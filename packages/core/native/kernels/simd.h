// The SIMD level in use. All levels compute the same bits; they differ only in speed.
#ifndef SPARRING_KERNELS_SIMD_H_
#define SPARRING_KERNELS_SIMD_H_

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/level.h"

namespace sparring::kernels {

// The requested level is unknown, or this CPU does not support it.
class SimdLevelError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// The names of the levels that this CPU supports, slowest first: "portable", then
// "avx2" and "avx512" on x86.
std::vector<std::string> available_simd_levels();

// The level in use. The first use sets it to the level in the environment variable
// SPARRING_SIMD, or else to the fastest level that this CPU supports.
// Throws SimdLevelError if the level in the variable is not available.
std::string simd_level();

// Sets the level for all later calls, on all threads. Throws SimdLevelError, without
// changes, if the level is not available.
void set_simd_level(std::string_view name);

// The loops of the level in use. Throws like simd_level().
const LevelKernels& active_kernels();

template <class T>
const RowKernels<T>& row_kernels() {
  if constexpr (std::is_same_v<T, float>) {
    return active_kernels().float32;
  } else {
    static_assert(std::is_same_v<T, double>);
    return active_kernels().float64;
  }
}

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_SIMD_H_
