// Whether values are finite: neither infinite nor NaN.
#ifndef SPARRING_KERNELS_FINITE_H_
#define SPARRING_KERNELS_FINITE_H_

#include <cstdint>

#include "sparring/storage_abi.h"

namespace sparring::kernels {

// `values` needs only the alignment of T.
template <class T>
bool is_finite(const SparringExecutor* executor,
               const T* values,  // (count)
               int64_t count);

// finite[i] = 1 if all of row i is finite, else 0.
template <class T>
void finite_rows(const SparringExecutor* executor,
                 const T* values,  // (u, dim)
                 int64_t count,    // u
                 int64_t dim,
                 uint8_t* finite);  // out (u)

extern template bool is_finite(const SparringExecutor*, const float*, int64_t);
extern template bool is_finite(const SparringExecutor*, const double*, int64_t);
extern template void finite_rows(const SparringExecutor*, const float*, int64_t, int64_t,
                                 uint8_t*);
extern template void finite_rows(const SparringExecutor*, const double*, int64_t, int64_t,
                                 uint8_t*);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_FINITE_H_
