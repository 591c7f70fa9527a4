// The plan of a batch for one table, created once and used by all operations of a step.
//
//   ids     7 3 | 3 9 |      keys      7   3   9
//   bags     b0 |  b1 |      inverse   0   1   1   2          key of each id
//                            starts    0   1       3   4
//                            slots     b0  b0  b1  b1         bags of each key
//                            handles   of the row of each key, or NULL: no row
//
// The forward pass reads rows by `inverse` and `handles`. The update sums the gradients of a key
// by `starts` and `slots`, and updates its row by its handle. Only keys without a row are searched
// again.
//
// The work is distributed over threads by the hashes of ids. Each thread processes the keys of
// one part in the order of the batch, so that gradients are read almost in order. The parts are
// stored one after another. With one thread, all keys are in the order of the batch.
#ifndef SPARRING_COLLECTION_PLAN_H_
#define SPARRING_COLLECTION_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "collection/lookup.h"

namespace sparring::collection {

template <class T>
struct TablePlan {
  std::vector<FeatureIds<T>> features;  // all of one table
  int64_t num_keys = 0;                 // u
  std::unique_ptr<int64_t[]> keys;      // (u)
  std::unique_ptr<int64_t[]> starts;    // (u + 1)
  // (n) by key, in the order of the batch: the bag of each id, or the id itself if offsets are
  // NULL, counted over all features.
  std::unique_ptr<uint32_t[]> slots;
  std::unique_ptr<T[]> scales;          // (n) by key, or NULL: all are 1
  T largest_scale = 1;                  // of |scales|
  int64_t most_sources = 0;             // of one key
  std::unique_ptr<uint32_t[]> inverse;  // (n) of the ids of all features, or NULL
  // (u) of `generation`, or NULL if the storage has no handles; see SparringVisit.
  std::unique_ptr<const void*[]> handles;
  uint64_t generation = 0;

  // n
  int64_t num_sources() const { return starts[static_cast<size_t>(num_keys)]; }
};

// `is_looked_up`: with `inverse`. REQUIRES: a feature. Throws std::bad_alloc.
template <class T>
TablePlan<T> make_plan(const SparringExecutor* executor, std::vector<FeatureIds<T>> features,
                       bool is_looked_up);

// The plan of one feature with distinct ids and without bags, which needs no grouping. Throws
// std::bad_alloc.
template <class T>
TablePlan<T> plan_distinct(const FeatureIds<T>& ids);

// Finds the rows of the keys, if the storage has handles. Throws StorageError,
// std::bad_alloc.
template <class T>
void find_handles(const SparringExecutor* executor, TablePlan<T>& plan);

extern template struct TablePlan<float>;
extern template struct TablePlan<double>;
extern template TablePlan<float> make_plan(const SparringExecutor*,
                                           std::vector<FeatureIds<float>>, bool);
extern template TablePlan<double> make_plan(const SparringExecutor*,
                                            std::vector<FeatureIds<double>>, bool);
extern template TablePlan<float> plan_distinct(const FeatureIds<float>&);
extern template TablePlan<double> plan_distinct(const FeatureIds<double>&);
extern template void find_handles(const SparringExecutor*, TablePlan<float>&);
extern template void find_handles(const SparringExecutor*, TablePlan<double>&);

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_PLAN_H_
