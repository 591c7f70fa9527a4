// One step of the fused update methods over many tables.
//
// First everything that can be refused: gradients are laid out by key, as the plan of
// their batch has them or a plan that is made now, and room is looked for. Then every table's rows change in place, each visited once: its
// gradient is summed, it is made if it is new, and the method changes it.
#ifndef SPARRING_COLLECTION_FUSED_STEP_H_
#define SPARRING_COLLECTION_FUSED_STEP_H_

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "abi/storage_handle.h"
#include "collection/gradients.h"
#include "kernels/admission.h"
#include "kernels/update.h"

namespace sparring::collection {

template <class T>
struct FusedUpdate {
  const TableView* table;  // its storage is not NULL
  std::vector<FeatureGradient<T>> gradients;
  std::shared_ptr<const TablePlan<T>> plan;  // of the batch of `gradients`, or NULL
  // The largest |element| of all gradients, NaN if any is NaN.
  T largest_gradient;
  kernels::UpdateSpec spec;
  const T* initial_state;            // (state_width), or NULL: zeros
  kernels::AdmissionFilter* filter;  // or NULL: all are admitted
  int64_t admission_step;            // what it is told of the step
};

struct TableOutcome {
  int64_t num_updated = 0;   // rows, new ones included
  int64_t num_inserted = 0;  // of these, new
  int64_t num_refused = 0;   // keys that were not admitted
  abi::EvictedRows evicted;
  std::exception_ptr failure;  // or NULL; then each key has its old or its new row
};

template <class T>
class FusedStep {
 public:
  // Groups. Throws std::bad_alloc.
  FusedStep(const SparringExecutor* executor, std::vector<FusedUpdate<T>> updates);

  size_t num_tables() const { return updates_.size(); }
  // Whether every sum of a table's gradients is certainly a finite number. It may be
  // in doubt where an addition could overflow.
  bool is_certainly_finite(size_t table) const;

  // The keys that have a gradient, (u).
  const TablePlan<T>& plan(size_t table) const { return *grouped_[table].plan; }

  // Keys without a row that will have one. Throws StorageError, std::bad_alloc.
  int64_t count_new(size_t table) const;

  // Changes the rows, then has the filters of the tables that changed count. Where a table
  // fails, by StorageError or std::bad_alloc, its outcome says so, and the others change.
  std::vector<TableOutcome> apply();

 private:
  // For loops over tables: NULL if the batch is small.
  const SparringExecutor* executor_for_tables() const;

  const SparringExecutor* executor_;
  std::vector<FusedUpdate<T>> updates_;
  std::vector<GroupedGradients<T>> grouped_;
};

extern template class FusedStep<float>;
extern template class FusedStep<double>;

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_FUSED_STEP_H_
