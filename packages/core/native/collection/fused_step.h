// One step of the fused update methods over many tables.
//
// First come all operations that can fail: gradients are grouped by key, with the plan of their
// batch or a new plan, and memory is allocated. Then the rows of every table are updated in place,
// each in one visit: its gradient is summed, a new row is initialized, and the method updates it.
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
  int64_t admission_step;            // number of the step for the filter
};

struct TableOutcome {
  int64_t num_updated = 0;   // rows, new ones included
  int64_t num_inserted = 0;  // new rows among them
  int64_t num_refused = 0;   // keys that were not admitted
  abi::EvictedRows evicted;
  std::exception_ptr failure;  // or NULL; after a failure each key has its old or its new row
};

template <class T>
class FusedStep {
 public:
  // Groups the gradients. Throws std::bad_alloc.
  FusedStep(const SparringExecutor* executor, std::vector<FusedUpdate<T>> updates);

  size_t num_tables() const { return updates_.size(); }
  // Whether every sum of a table's gradients is certainly finite. It is not certain if an
  // addition could overflow.
  bool is_certainly_finite(size_t table) const;

  // The keys that have a gradient, (u).
  const TablePlan<T>& plan(size_t table) const { return *grouped_[table].plan; }

  // Keys without a row that will get one. Throws StorageError, std::bad_alloc.
  int64_t count_new(size_t table) const;

  // Updates the rows, then the filters of the updated tables. If a table fails with StorageError
  // or std::bad_alloc, its outcome contains the failure, and the other tables are updated.
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
