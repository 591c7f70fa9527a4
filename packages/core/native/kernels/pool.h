// Pools rows per bag of ids, and computes the gradients.
//
//   rows (u, dim)  ──inverse──►  one row per id  ──weights, offsets──►  out (b, dim)
//
// A bag contains the ids from offsets[b] to offsets[b + 1]. Its result is the sum of the
// rows of its ids in their order, multiplied by the weights if there are any. `is_mean`
// divides by the number of ids in the bag, not by the sum of weights. The result for an
// empty bag is zeros. Results do not depend on the number of threads.
#ifndef SPARRING_KERNELS_POOL_H_
#define SPARRING_KERNELS_POOL_H_

#include "kernels/level.h"
#include "sparring/storage_abi.h"

namespace sparring::kernels {

// REQUIRES: every inverse[i] in [0, u); offsets are nondecreasing from 0 to n; out does
// not overlap the inputs. See level.h for shapes.
template <class T>
void pool(const SparringExecutor* executor, const PoolArguments<T>& arguments,
          int64_t num_bags);

// The gradient of each weight: the dot product of the bag's gradient and the id's
// row, divided by the number of ids in the bag if `is_mean`. REQUIRES: as above.
template <class T>
void pool_weight_gradient(const SparringExecutor* executor,
                          const WeightGradientArguments<T>& arguments, int64_t num_bags);

extern template void pool(const SparringExecutor*, const PoolArguments<float>&, int64_t);
extern template void pool(const SparringExecutor*, const PoolArguments<double>&, int64_t);
extern template void pool_weight_gradient(const SparringExecutor*,
                                          const WeightGradientArguments<float>&, int64_t);
extern template void pool_weight_gradient(const SparringExecutor*,
                                          const WeightGradientArguments<double>&, int64_t);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_POOL_H_
