// Which SIMD level runs. All levels give the same bits; they differ in speed.
#ifndef SPARRING_KERNELS_SIMD_H_
#define SPARRING_KERNELS_SIMD_H_

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/level.h"

namespace sparring::kernels {

// The requested level is unknown, or this CPU lacks it.
class SimdLevelError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// The names of the levels that this CPU has, slowest first: "portable", then
// "avx2" and "avx512" on x86.
std::vector<std::string> available_simd_levels();

// The level in use. At first use it is what the environment variable
// SPARRING_SIMD names, or else the fastest that this CPU has.
// Throws SimdLevelError where the variable names a level that is not to be had.
std::string simd_level();

// Chooses the level for calls from now on, on all threads. Throws SimdLevelError,
// and changes nothing, for a level that is not to be had.
void set_simd_level(std::string_view name);

// The loops of the level in use. Throws as simd_level() does.
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
