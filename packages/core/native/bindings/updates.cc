// sparring._native.UpdateSpec, update_rows and FusedStep: update methods over rows.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/collection.h"
#include "bindings/gil.h"
#include "collection/fused_step.h"
#include "execution/pool.h"
#include "kernels/halves.h"
#include "kernels/parallel.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

using execution::process_executor;
using kernels::UpdateSpec;

kernels::HyperParameters hyper_from(const py::dict& given) {
  kernels::HyperParameters hyper;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (!updates::set_hyper_parameter(&hyper, name, value.cast<double>())) {
      refuse("unknown hyper-parameter '" + name + "'");
    }
  }
  return hyper;
}

// Updates rows (n, row_bytes) in place.
template <class T>
void update_rows_as(const UpdateSpec& spec, const py::array& keys, py::array& rows,
                    const py::array& gradients) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t count = keys.shape(0);
  const T* values = input<T>(gradients, "gradients", {count, spec.layout.dim});
  check_layout(rows, "rows", {count, kAny}, true);
  if (rows.shape(1) * rows.itemsize() != spec.layout.row_bytes) {
    refuse("rows of " + std::to_string(spec.layout.row_bytes) + " bytes are expected, found " +
           std::to_string(rows.shape(1) * rows.itemsize()));
  }
  auto* const bytes = static_cast<std::byte*>(rows.mutable_data());
  const GilRelease release;
  const kernels::PreparedUpdate prepared(spec);
  constexpr int64_t kBlock = 64;
  kernels::parallel_for(
      process_executor(), count, std::max(kBlock, kernels::grain_for(2 * spec.layout.row_bytes)),
      [&](int64_t begin, int64_t end) {
        std::vector<T> own(static_cast<size_t>(kBlock * spec.layout.dim));
        void* pointers[kBlock];
        for (int64_t at = begin; at < end; at += kBlock) {
          const int64_t part = std::min(kBlock, end - at);
          for (int64_t i = 0; i < part; ++i) pointers[i] = bytes + (at + i) * spec.layout.row_bytes;
          std::copy_n(values + at * spec.layout.dim, part * spec.layout.dim, own.data());
          kernels::update_rows(prepared, {from + at, pointers, own.data(), part});
        }
      });
}

void update_rows(const UpdateSpec& spec, const py::array& keys, py::array& rows,
                 const py::array& gradients) {
  if (spec.layout.type == kernels::RowType::float64) {
    update_rows_as<double>(spec, keys, rows, gradients);
  } else {
    update_rows_as<float>(spec, keys, rows, gradients);
  }
}

// One table's part of a step, from Python.
struct TablePart {
  SharedView table;
  UpdateSpec spec;
  std::optional<py::array> initial_state;
  std::shared_ptr<kernels::AdmissionFilter> filter;  // or NULL
  std::vector<const PyGradientSources*> sources;
};

template <class T>
struct Group {
  std::vector<size_t> places;  // of each table in the order of Python
  std::optional<collection::FusedStep<T>> step;
};

class PyFusedStep {
 public:
  // (table, spec, initial state or None, admission filter or None, gradient sources) of
  // each table.
  PyFusedStep(const py::list& tables, int64_t step) : step_(step), owners_(tables) {
    for (const auto& each : tables) {
      const auto part = each.cast<py::tuple>();
      TablePart made{part[0].cast<SharedView>(), part[1].cast<UpdateSpec>(), std::nullopt, nullptr,
                     {}};
      if (!part[2].is_none()) made.initial_state = part[2].cast<py::array>();
      if (!part[3].is_none()) {
        made.filter = part[3].cast<std::shared_ptr<kernels::AdmissionFilter>>();
      }
      for (const auto& source : part[4].cast<py::list>()) {
        made.sources.push_back(source.cast<const PyGradientSources*>());
      }
      check(made);
      parts_.push_back(std::move(made));
    }
    const GilRelease release;
    prepare(float32_);
    prepare(float64_);
  }

  // Positions of tables whose sums are not certainly finite.
  std::vector<size_t> may_be_nonfinite() const {
    std::vector<size_t> found;
    each_table([&](const auto& group, size_t table, size_t place) {
      if (!group.step->is_certainly_finite(table)) found.push_back(place);
    });
    return found;
  }

  int64_t count_new(size_t place) const {
    int64_t num_new = 0;
    const GilRelease release;
    each_table([&](const auto& group, size_t table, size_t at) {
      if (at == place) num_new = group.step->count_new(table);
    });
    return num_new;
  }

  py::array_t<int64_t> keys(size_t place) const {
    const int64_t* from = nullptr;
    int64_t count = 0;
    each_table([&](const auto& group, size_t table, size_t at) {
      if (at != place) return;
      const auto& plan = group.step->plan(table);
      from = plan.keys.get();
      count = plan.num_keys;
    });
    return py::array_t<int64_t>(static_cast<py::ssize_t>(count), from);
  }

  // Returns the result of `outcomes`. Raises the first failure, after the tables that did not
  // fail were updated.
  py::list apply() {
    outcomes_.resize(parts_.size());
    {
      const GilRelease release;
      apply_to(float32_, outcomes_);
      apply_to(float64_, outcomes_);
    }
    for (const collection::TableOutcome& each : outcomes_) {
      if (each.failure) std::rethrow_exception(each.failure);
    }
    return outcomes();
  }

  // The rows that the table at `place` evicted: keys (n), rows (n, row_bytes) uint8, scores (n).
  // REQUIRES: apply() was called.
  py::tuple evicted(size_t place) const {
    if (place >= outcomes_.size()) refuse("evicted: apply() was not called, or the step has no "
                                          "table at this position");
    return evicted_arrays(outcomes_[place].evicted,
                          parts_[place].table->view().layout.row_bytes);
  }

  // (rows updated, inserted, refused, evicted) of each table, None of one that failed.
  py::list outcomes() const {
    py::list result;
    for (const collection::TableOutcome& each : outcomes_) {
      if (each.failure) {
        result.append(py::none());
      } else {
        result.append(py::make_tuple(each.num_updated, each.num_inserted, each.num_refused,
                                     each.evicted.keys.size()));
      }
    }
    return result;
  }

 private:
  static void check(const TablePart& part) {
    const kernels::RowLayout& rows = part.table->view().layout;
    const kernels::RowLayout& wanted = part.spec.layout;
    if (part.table->view().storage == nullptr) refuse("step: a table has no storage; open it first");
    if (rows.type != wanted.type || rows.dim != wanted.dim ||
        rows.state_width != wanted.state_width) {
      refuse("rows of dim " + std::to_string(rows.dim) + " with " +
             std::to_string(rows.state_width) + " elements of state do not fit the method, which " +
             "requires dim " + std::to_string(wanted.dim) + " and " +
             std::to_string(wanted.state_width));
    }
    if (part.initial_state) {
      if (part.table->is_double()) {
        input<double>(*part.initial_state, "initial_state", {wanted.state_width});
      } else {
        input<float>(*part.initial_state, "initial_state", {wanted.state_width});
      }
    }
    for (const PyGradientSources* source : part.sources) {
      if (source->is_double() != part.table->is_double()) {
        refuse("gradients must have the computing dtype of their table; convert them");
      }
    }
  }

  template <class T>
  void prepare(Group<T>& group) const {
    std::vector<collection::FusedUpdate<T>> updates;
    for (size_t place = 0; place < parts_.size(); ++place) {
      const TablePart& part = parts_[place];
      if (part.table->is_double() != std::is_same_v<T, double>) continue;
      collection::FusedUpdate<T> update{&part.table->view(), {},      nullptr,          0,
                                        part.spec,           nullptr, part.filter.get(), step_};
      if (part.sources.size() == 1) update.plan = plan_of<T>(*part.sources[0], part.table.get());
      update.spec.rounding_seed =
          sparring::rounding_seed_for(part.table->view().initializer.philox_key);
      double largest = 0;
      for (const PyGradientSources* source : part.sources) {
        append_gradients<T>(*source, part.table.get(), update.gradients);
        const double found = source->largest_gradient();
        if (!(found <= largest) && largest == largest) largest = found;
      }
      update.largest_gradient = static_cast<T>(largest);
      if (part.initial_state) {
        update.initial_state = static_cast<const T*>(part.initial_state->data());
      }
      updates.push_back(std::move(update));
      group.places.push_back(place);
    }
    group.step.emplace(process_executor(), std::move(updates));
  }

  template <class Visit>
  void each_table(const Visit& visit) const {
    for (size_t i = 0; i < float32_.places.size(); ++i) visit(float32_, i, float32_.places[i]);
    for (size_t i = 0; i < float64_.places.size(); ++i) visit(float64_, i, float64_.places[i]);
  }

  template <class T>
  static void apply_to(Group<T>& group, std::vector<collection::TableOutcome>& outcomes) {
    std::vector<collection::TableOutcome> found = group.step->apply();
    for (size_t i = 0; i < found.size(); ++i) outcomes[group.places[i]] = std::move(found[i]);
  }

  int64_t step_;
  py::object owners_;  // of all that the pointers below lead to
  std::vector<TablePart> parts_;
  Group<float> float32_;
  Group<double> float64_;
  std::vector<collection::TableOutcome> outcomes_;
};

UpdateSpec make_update_spec(const std::string& method, const std::string& dtype,
                                     int64_t dim, const py::dict& hyper, int64_t step,
                                     uint64_t rounding_seed) {
  UpdateSpec spec{};
  if (!updates::update_method_named(method, &spec.method)) {
    refuse("unknown update method '" + method + "'");
  }
  if (dim < 1) refuse("dim must be at least 1, found " + std::to_string(dim));
  if (step < 1) refuse("step must be at least 1, found " + std::to_string(step));
  spec.layout = kernels::make_row_layout(row_type_named(dtype), dim,
                                         updates::state_width_of(spec.method, dim));
  spec.hyper = hyper_from(hyper);
  spec.step = step;
  spec.rounding_seed = rounding_seed;
  return spec;
}

}  // namespace
}  // namespace sparring::bindings

void bind_updates(py::module_& module) {
  using namespace sparring::bindings;
  py::class_<UpdateSpec>(module, "UpdateSpec")
      .def(py::init(&make_update_spec), py::arg("method"), py::arg("dtype"), py::arg("dim"),
           py::arg("hyper"), py::arg("step"), py::arg("rounding_seed") = 0)
      .def_property_readonly("state_width",
                             [](const UpdateSpec& self) { return self.layout.state_width; });
  module.def("update_rows", &update_rows, py::arg("spec"), py::arg("keys").noconvert(),
             py::arg("rows").noconvert(), py::arg("gradients").noconvert());
  py::class_<PyFusedStep>(module, "FusedStep")
      .def(py::init<const py::list&, int64_t>(), py::arg("tables"), py::arg("step"))
      .def("may_be_nonfinite", &PyFusedStep::may_be_nonfinite)
      .def("count_new", &PyFusedStep::count_new, py::arg("place"))
      .def("keys", &PyFusedStep::keys, py::arg("place"),
           "Returns a copy of the keys (u) that have a gradient.")
      .def("apply", &PyFusedStep::apply)
      .def("evicted", &PyFusedStep::evicted, py::arg("place"),
           "Returns the rows that the table evicted: keys (n), rows (n, row_bytes) uint8, scores (n).")
      .def("outcomes", &PyFusedStep::outcomes);
}
