// Gradients of bags, grouped by key.
//
//   plan     keys    7   3   9
//            starts  0   1   3   4
//   sources  b0  b0  b1  b1        pointers into the gradient
//
// The gradients are not summed here: the visitor of a key sums its sources in the order of
// the batch, while its row is in the cache.
#ifndef SPARRING_COLLECTION_GRADIENTS_H_
#define SPARRING_COLLECTION_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "collection/plan.h"

namespace sparring::collection {

// A gradient per bag of a feature, or per id if offsets are NULL.
template <class T>
struct FeatureGradient {
  FeatureIds<T> input;
  const T* gradient;  // gradient[i * stride], i in [0, count): (dim) elements
  int64_t stride;
};

template <class T>
struct GroupedGradients {
  std::shared_ptr<const TablePlan<T>> plan;
  std::unique_ptr<const T*[]> sources;  // (n) by key
};

// The sources of a plan. `gradients`: of its features, in order. Throws std::bad_alloc.
template <class T>
GroupedGradients<T> lay_out(const SparringExecutor* executor,
                            std::shared_ptr<const TablePlan<T>> plan,
                            const std::vector<FeatureGradient<T>>& gradients);

// The same without an existing plan. All of `gradients` belong to one table. Throws
// std::bad_alloc.
template <class T>
GroupedGradients<T> group(const SparringExecutor* executor,
                          const std::vector<FeatureGradient<T>>& gradients);

extern template GroupedGradients<float> lay_out(const SparringExecutor*,
                                                std::shared_ptr<const TablePlan<float>>,
                                                const std::vector<FeatureGradient<float>>&);
extern template GroupedGradients<double> lay_out(const SparringExecutor*,
                                                 std::shared_ptr<const TablePlan<double>>,
                                                 const std::vector<FeatureGradient<double>>&);
extern template GroupedGradients<float> group(const SparringExecutor*,
                                              const std::vector<FeatureGradient<float>>&);
extern template GroupedGradients<double> group(const SparringExecutor*,
                                               const std::vector<FeatureGradient<double>>&);

// Sums each key's sources: out (u, dim).
template <class T>
void sum(const SparringExecutor* executor, const GroupedGradients<T>& grouped, int64_t dim,
         T* out);

extern template void sum(const SparringExecutor*, const GroupedGradients<float>&, int64_t, float*);
extern template void sum(const SparringExecutor*, const GroupedGradients<double>&, int64_t,
                         double*);

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_GRADIENTS_H_
