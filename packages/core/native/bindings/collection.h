// Bindings for lookups and steps over whole collections: `Collection` of _native.pyi.
#ifndef SPARRING_BINDINGS_COLLECTION_H_
#define SPARRING_BINDINGS_COLLECTION_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/arrays.h"
#include "collection/gradients.h"
#include "collection/row_copies.h"
#include "collection/table_view.h"

namespace sparring::bindings {

// Raises InvalidArgumentError for an unknown dtype.
kernels::RowType row_type_named(const std::string& dtype);

// A table and its current storage.
class PyTableView {
 public:
  PyTableView(const std::string& dtype, const kernels::InitializerSpec& initializer);

  // From now on, rows have `state_width` elements of state and are in the storage of `capsule`.
  void attach(pybind11::capsule capsule, int64_t state_width);
  void detach();
  // Like detach, but permanent.
  void close();

  // See published.h.
  void begin_load();
  void end_load(bool is_whole);
  bool is_cut_short() const { return view_.rows == collection::Rows::cut_short; }

  const collection::TableView& view() const { return view_; }
  bool is_double() const { return view_.layout.type == kernels::RowType::float64; }

 private:
  pybind11::object capsule_;
  std::optional<abi::StorageHandle> handle_;
  collection::TableView view_;
};

using SharedView = std::shared_ptr<PyTableView>;

// The rows that a table evicted: keys (n), rows (n, row_bytes) uint8, scores (n).
pybind11::tuple evicted_arrays(const abi::EvictedRows& evicted, int64_t row_bytes);

// Handles of the rows of a batch's keys, for updates of copies of rows.
class PyRowHandles {
 public:
  template <class T>
  PyRowHandles(SharedView table, std::shared_ptr<const collection::TablePlan<T>> plan)
      : table_(std::move(table)),
        rows_{table_->view().storage, plan->num_keys, plan->keys.get(), plan->handles.get(),
              plan->generation},
        owner_(std::move(plan)) {}

  // Copies rows (u, row_bytes) to the caller, zeros for keys without a row; found (u).
  void find(pybind11::array& rows, pybind11::array& found) const;
  // Writes rows (u, row_bytes) back. Returns the evicted rows, see `evicted_arrays`.
  pybind11::tuple upsert(const pybind11::array& rows) const;

 private:
  const collection::KeyRows& rows() const;

  SharedView table_;
  collection::KeyRows rows_;
  std::shared_ptr<const void> owner_;
};

// Gradients for tables, and the arrays that contain them.
class PyGradientSources {
 public:
  template <class T>
  struct Feature {
    SharedView table;
    collection::FeatureGradient<T> gradient;
  };
  template <class T>
  struct Plan {
    SharedView table;
    std::shared_ptr<const collection::TablePlan<T>> plan;  // or NULL: there is no plan
  };
  template <class T>
  struct Part {
    std::vector<Feature<T>> features;
    std::vector<Plan<T>> plans;  // of the batch
    // Memory of all gradients.
    struct Span {
      StridedRows<T> rows;
      int64_t count;  // of rows
      int64_t width;  // of a row
    };
    std::vector<Span> spans;
  };
  using Parts = std::variant<Part<float>, Part<double>>;

  PyGradientSources(Parts parts, pybind11::object owners)
      : parts_(std::move(parts)), owners_(std::move(owners)) {}

  const Parts& parts() const { return parts_; }
  bool is_double() const { return parts_.index() == 1; }

  // The largest |element|, NaN if any is NaN; computed once. Call without the GIL.
  double largest_gradient() const;

  // keys (u) and the sums of their gradients (u, dim), of one table.
  pybind11::tuple summed(const SharedView& table) const;

  // Handles for the keys of `summed`, in their order; NULL if the storage has no handles.
  std::unique_ptr<PyRowHandles> row_handles(const SharedView& table) const;

 private:
  Parts parts_;
  pybind11::object owners_;
  mutable std::optional<double> largest_;
};

// Appends the gradients in `sources` for a table.
template <class T>
void append_gradients(const PyGradientSources& sources, const PyTableView* table,
                      std::vector<collection::FeatureGradient<T>>& to) {
  for (const auto& feature : std::get<PyGradientSources::Part<T>>(sources.parts()).features) {
    if (feature.table.get() == table) to.push_back(feature.gradient);
  }
}

// Returns the plan of a batch for a table, or NULL.
template <class T>
std::shared_ptr<const collection::TablePlan<T>> plan_of(const PyGradientSources& sources,
                                                        const PyTableView* table) {
  for (const auto& each : std::get<PyGradientSources::Part<T>>(sources.parts()).plans) {
    if (each.table.get() == table) return each.plan;
  }
  return nullptr;
}

}  // namespace sparring::bindings

#endif  // SPARRING_BINDINGS_COLLECTION_H_
