#include "kernels/gather.h"

#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {

template <class T>
void gather(const SparringExecutor* executor, const GatherArguments<T>& arguments) {
  const RowKernels<T>& kernels = row_kernels<T>();
  const int64_t row_bytes = arguments.dim * static_cast<int64_t>(sizeof(T));
  parallel_for(executor, arguments.count, grain_for(2 * row_bytes),
               [&](int64_t begin, int64_t end) { kernels.gather(arguments, begin, end); });
}

template void gather(const SparringExecutor*, const GatherArguments<float>&);
template void gather(const SparringExecutor*, const GatherArguments<double>&);

}  // namespace sparring::kernels
