#include "kernels/pool.h"

#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

// Bags per piece: a bag moves, on average, the rows of its ids and its result.
int64_t grain_of_bags(int64_t count, int64_t num_bags, int64_t row_bytes) {
  return grain_for((count / std::max<int64_t>(1, num_bags) + 1) * row_bytes);
}

}  // namespace

template <class T>
void pool(const SparringExecutor* executor, const PoolArguments<T>& arguments,
          int64_t num_bags) {
  const RowKernels<T>& kernels = row_kernels<T>();
  const int64_t row_bytes = arguments.dim * static_cast<int64_t>(sizeof(T));
  parallel_for(executor, num_bags, grain_of_bags(arguments.count, num_bags, row_bytes),
               [&](int64_t begin, int64_t end) { kernels.pool(arguments, begin, end); });
}

template <class T>
void pool_weight_gradient(const SparringExecutor* executor,
                          const WeightGradientArguments<T>& arguments, int64_t num_bags) {
  const RowKernels<T>& kernels = row_kernels<T>();
  const int64_t row_bytes = arguments.dim * static_cast<int64_t>(sizeof(T));
  parallel_for(executor, num_bags, grain_of_bags(arguments.count, num_bags, row_bytes),
               [&](int64_t begin, int64_t end) { kernels.weight_gradient(arguments, begin, end); });
}

template void pool(const SparringExecutor*, const PoolArguments<float>&, int64_t);
template void pool(const SparringExecutor*, const PoolArguments<double>&, int64_t);
template void pool_weight_gradient(const SparringExecutor*, const WeightGradientArguments<float>&,
                                   int64_t);
template void pool_weight_gradient(const SparringExecutor*, const WeightGradientArguments<double>&,
                                   int64_t);

}  // namespace sparring::kernels
