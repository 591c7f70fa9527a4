// Sums rows by target: `segment_sum`, and the gradient of `pool`.
#ifndef SPARRING_KERNELS_SCATTER_H_
#define SPARRING_KERNELS_SCATTER_H_

#include "kernels/level.h"
#include "sparring/storage_abi.h"

namespace sparring::kernels {

// out[t] = the sum over all occurrences i with targets[i] == t, of the row of i's
// bag times i's weight (and divided by the number of ids in the bag, if `is_mean`),
// in the order of i, from zero. The bits do not depend on the number of threads or
// the SIMD level. Rows of `out` without an occurrence are zeros. Shapes in level.h.
//
// REQUIRES: every targets[i] in [0, num_rows); offsets are nondecreasing from 0 to n; n, b
// and num_rows below 2^31; out does not overlap the inputs.
template <class T>
void scatter(const SparringExecutor* executor, const ScatterArguments<T>& arguments);

extern template void scatter(const SparringExecutor*, const ScatterArguments<float>&);
extern template void scatter(const SparringExecutor*, const ScatterArguments<double>&);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_SCATTER_H_
