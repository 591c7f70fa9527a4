// Checks of indices, for callers whose arrays come from outside.
#ifndef SPARRING_KERNELS_CHECK_H_
#define SPARRING_KERNELS_CHECK_H_

#include <cstdint>

namespace sparring::kernels {

// The first place in indices (n) that is outside [0, limit), or -1.
int64_t first_out_of_range(const int64_t* indices, int64_t count, int64_t limit);

// The first place in offsets (b + 1) that breaks the rule that they begin with 0,
// never fall, and end with `count`; or -1. REQUIRES: at least one offset.
int64_t first_bad_offset(const int64_t* offsets, int64_t num_bags, int64_t count);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_CHECK_H_
