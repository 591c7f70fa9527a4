#include "kernels/finite.h"

#include <atomic>

#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {

template <class T>
bool is_finite(const SparringExecutor* executor, const T* values, int64_t count) {
  const RowKernels<T>& kernels = row_kernels<T>();
  std::atomic<bool> is_good{true};
  // Pieces are larger than in other kernels, because reading without writing is fast.
  const int64_t grain = 4 * grain_for(static_cast<int64_t>(sizeof(T)));
  parallel_for(executor, count, grain, [&](int64_t begin, int64_t end) {
    if (!is_good.load(std::memory_order_relaxed)) return;
    if (!kernels.is_finite(values + begin, end - begin)) is_good = false;
  });
  return is_good;
}

template <class T>
void finite_rows(const SparringExecutor* executor, const T* values, int64_t count, int64_t dim,
                 uint8_t* finite) {
  const RowKernels<T>& kernels = row_kernels<T>();
  const int64_t grain = grain_for(dim * static_cast<int64_t>(sizeof(T)));
  parallel_for(executor, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      finite[i] = kernels.is_finite(values + i * dim, dim) ? 1 : 0;
    }
  });
}

template bool is_finite(const SparringExecutor*, const float*, int64_t);
template bool is_finite(const SparringExecutor*, const double*, int64_t);
template void finite_rows(const SparringExecutor*, const float*, int64_t, int64_t, uint8_t*);
template void finite_rows(const SparringExecutor*, const double*, int64_t, int64_t, uint8_t*);

}  // namespace sparring::kernels
