// Checks of indices, for arrays from outside.
#ifndef SPARRING_KERNELS_CHECK_H_
#define SPARRING_KERNELS_CHECK_H_

#include <cstdint>

namespace sparring::kernels {

// Returns the first position in indices (n) with a value outside of [0, limit), or -1.
int64_t first_out_of_range(const int64_t* indices, int64_t count, int64_t limit);

// Returns the first position at which offsets (b + 1) do not begin with 0, decrease, or do
// not end with `count`; or -1. REQUIRES: at least one offset.
int64_t first_bad_offset(const int64_t* offsets, int64_t num_bags, int64_t count);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_CHECK_H_
