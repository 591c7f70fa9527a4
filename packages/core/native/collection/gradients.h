// Gradients of bags, grouped by the keys they are for.
//
//   ids   7 3 | 3 9 |      keys    7   3   9
//   bags   b0 |  b1 |      starts  0   1   3   4
//                          sources b0  b0  b1  b1        pointers into the gradient
//
// Threads share the work by the hashes of ids: each deals with the keys of its own
// part, in the order in which they come in the batch, so that gradients are read
// nearly in order; the parts lie one after the other. With one thread all keys are
// in the order of the batch.
//
// Nothing is added up here: the visitor of a key sums its sources, in the order in
// which the ids came, while its row is at hand.
#ifndef SPARRING_COLLECTION_GRADIENTS_H_
#define SPARRING_COLLECTION_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "collection/lookup.h"

namespace sparring::collection {

// A gradient for each bag of a feature, or for each id where offsets are NULL.
template <class T>
struct FeatureGradient {
  FeatureIds<T> input;
  const T* gradient;  // gradient[i * stride], i in [0, count): (dim) elements
  int64_t stride;
};

template <class T>
struct GroupedGradients {
  int64_t num_keys = 0;                  // u
  std::unique_ptr<int64_t[]> keys;       // (u)
  std::unique_ptr<int64_t[]> starts;     // (u + 1)
  std::unique_ptr<const T*[]> sources;   // (n) by key
  std::unique_ptr<T[]> scales;           // (n) by key, or NULL: all one
  T largest_scale = 1;                   // of |scales|
  int64_t most_sources = 0;              // of one key
};

// All of `features` look up in one table. Throws std::bad_alloc.
template <class T>
GroupedGradients<T> group(const SparringExecutor* executor,
                          const std::vector<FeatureGradient<T>>& features);

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
