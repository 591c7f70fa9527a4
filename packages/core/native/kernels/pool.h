// One row for each bag of ids, and the gradients of that.
//
//   rows (u, dim)  ──inverse──►  one row an id  ──weights, offsets──►  out (b, dim)
//
// A bag is the ids from offsets[b] to offsets[b + 1]. Its row is the sum of its ids'
// rows in their order, each times its weight if there are weights; `is_mean` then
// divides by the number of ids in the bag, not by the sum of weights. The row of an
// empty bag is zeros. Results do not depend on the number of threads.
#ifndef SPARRING_KERNELS_POOL_H_
#define SPARRING_KERNELS_POOL_H_

#include "kernels/level.h"
#include "sparring/storage_abi.h"

namespace sparring::kernels {

// REQUIRES: every inverse[i] in [0, u); offsets never fall, from 0 to n; out does
// not overlap the inputs. Shapes in level.h.
template <class T>
void pool(const SparringExecutor* executor, const PoolArguments<T>& arguments,
          int64_t num_bags);

// The gradient of each weight: the dot product of the bag's gradient and the id's
// row, divided by the number of ids in the bag if `is_mean`. REQUIRES as above.
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
