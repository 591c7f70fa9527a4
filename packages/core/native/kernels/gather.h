// Copies one row per id from one row per key.
#ifndef SPARRING_KERNELS_GATHER_H_
#define SPARRING_KERNELS_GATHER_H_

#include "kernels/level.h"
#include "sparring/storage_abi.h"

namespace sparring::kernels {

// out[i] = rows[inverse[i]]; see level.h for shapes.
// REQUIRES: every inverse[i] in [0, u); out does not overlap the inputs.
template <class T>
void gather(const SparringExecutor* executor, const GatherArguments<T>& arguments);

extern template void gather(const SparringExecutor*, const GatherArguments<float>&);
extern template void gather(const SparringExecutor*, const GatherArguments<double>&);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_GATHER_H_
