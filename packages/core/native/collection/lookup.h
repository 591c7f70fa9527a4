// Looks up all features of a batch in one call, directly in the tables.
//
//   ids of a feature ──visit──► rows in the storage ──sum, mean──► out[bag, column …]
//
// Rows are not copied; a repeated row comes from the CPU cache the second time. Training uses the
// row handles of a plan, or embeddings that were pulled from other ranks. Evaluation, which uses ids
// only once, searches for each id. An id without a row reads as its initial value. All features share the threads: the work is split into pieces
// of some thousand ids, independent of the tables.
#ifndef SPARRING_COLLECTION_LOOKUP_H_
#define SPARRING_COLLECTION_LOOKUP_H_

#include <cstdint>
#include <vector>

#include "collection/table_view.h"
#include "sparring/storage_abi.h"

namespace sparring::collection {

// The ids of one feature. `T` is the computing type of its table.
template <class T>
struct FeatureIds {
  const TableView* table;
  const int64_t* ids;      // (n) int64, of the whole batch
  const int64_t* offsets;  // (b + 1) into ids, nondecreasing; NULL: one embedding per id
  int64_t count;           // b bags; number of ids from ids[0] if offsets are NULL
  const T* weights;        // (n), of the whole batch, or NULL
  bool is_mean;
};

template <class T>
int64_t first_id(const FeatureIds<T>& input) {
  return input.offsets != nullptr ? input.offsets[0] : 0;
}

template <class T>
int64_t num_ids(const FeatureIds<T>& input) {
  return input.offsets != nullptr ? input.offsets[input.count] - input.offsets[0] : input.count;
}

// The rows of a feature's ids: handles of rows in the storage, see plan.h, or embeddings that came from
// other ranks.
struct KnownRows {
  const uint32_t* inverse;     // from the feature's first id, or NULL: search for the keys
  const void* const* handles;  // by inverse, or NULL
  uint64_t generation;
  const void* embeddings;      // (u, dim) of T by inverse, or NULL: handles are set
};

template <class T>
struct FeatureLookup {
  FeatureIds<T> input;
  T* out;          // out[i * stride], i in [0, count): (dim) elements are written
  int64_t stride;  // elements
  KnownRows known{};
};

// REQUIRES: offsets within the batch; outputs do not overlap. Throws StorageError,
// std::bad_alloc; the outputs are undefined then.
template <class T>
void look_up(const SparringExecutor* executor, const std::vector<FeatureLookup<T>>& features);

extern template void look_up(const SparringExecutor*, const std::vector<FeatureLookup<float>>&);
extern template void look_up(const SparringExecutor*, const std::vector<FeatureLookup<double>>&);

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_LOOKUP_H_
