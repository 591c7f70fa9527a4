// sparring._native.TableView, Collection and GradientSources: lookups of whole batches,
// and the gradients of these.
#include "bindings/collection.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "collection/lookup.h"
#include "collection/published.h"
#include "execution/pool.h"
#include "kernels/dedup.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

using collection::FeatureIds;
using collection::FeatureLookup;
using execution::process_executor;

bool is_mean(const std::string& pooling) {
  if (pooling == "sum") return false;
  if (pooling == "mean") return true;
  refuse("pooling must be 'sum' or 'mean', found '" + pooling + "'");
}

template <class T>
double largest_of(const PyGradientSources::Part<T>& part) {
  const kernels::RowKernels<T>& loops = kernels::row_kernels<T>();
  double largest = 0;
  std::mutex mutex;
  for (const auto& [values, count] : part.spans) {
    kernels::parallel_for(process_executor(), count,
                          kernels::kPieceBytes / static_cast<int64_t>(sizeof(T)),
                          [&, from = values](int64_t begin, int64_t end) {
                            const double found = loops.largest_magnitude(from + begin, end - begin);
                            const std::lock_guard<std::mutex> lock(mutex);
                            // NaN gets in and stays.
                            if (!(found <= largest) && largest == largest) largest = found;
                          });
  }
  return largest;
}

// Features that look up in tables, side by side in one output.
class PyCollection {
 public:
  // (table, pooling) of each feature, in the order of their columns.
  explicit PyCollection(const std::vector<std::pair<SharedView, std::string>>& features) {
    for (const auto& [table, pooling] : features) {
      if (!table) refuse("a table must not be None");
      if (table->is_double() != features.front().first->is_double()) {
        refuse("tables of one collection must compute in one dtype");
      }
      features_.push_back({table, width_, is_mean(pooling)});
      width_ += table->view().layout.dim;
    }
    if (features_.empty()) refuse("a collection needs at least one feature, found none");
  }

  int64_t width() const { return width_; }

  collection::Published published() const {
    collection::Published published{{}, width_};
    for (const Feature& each : features_) {
      published.features.push_back({&each.table->view(), each.column, each.is_mean});
    }
    return published;
  }

  std::vector<SharedView> tables() const {
    std::vector<SharedView> tables;
    for (const Feature& each : features_) tables.push_back(each.table);
    return tables;
  }

  py::array pool(const py::array& ids, const py::array& offsets, const std::vector<int64_t>& places,
                 int64_t num_bags, const py::object& weights) const {
    return is_double() ? pool_as<double>(ids, offsets, places, num_bags, weights)
                       : pool_as<float>(ids, offsets, places, num_bags, weights);
  }

  PyGradientSources bag_gradients(const py::array& ids, const py::array& offsets,
                                  const std::vector<int64_t>& places, int64_t num_bags,
                                  const py::object& weights, const py::array& gradient) const {
    return is_double()
               ? bag_gradients_as<double>(ids, offsets, places, num_bags, weights, gradient)
               : bag_gradients_as<float>(ids, offsets, places, num_bags, weights, gradient);
  }

  py::list gather(const py::array& ids, const std::vector<std::pair<int64_t, int64_t>>& spans) const {
    return is_double() ? gather_as<double>(ids, spans) : gather_as<float>(ids, spans);
  }

  PyGradientSources id_gradients(const py::array& ids,
                                 const std::vector<std::pair<int64_t, int64_t>>& spans,
                                 const std::vector<py::array>& gradients) const {
    return is_double() ? id_gradients_as<double>(ids, spans, gradients)
                       : id_gradients_as<float>(ids, spans, gradients);
  }

 private:
  struct Feature {
    SharedView table;
    int64_t column;
    bool is_mean;
  };

  bool is_double() const { return features_.front().table->is_double(); }

  template <class T>
  std::vector<FeatureIds<T>> pooled_ids(const py::array& ids, const py::array& offsets,
                                        const std::vector<int64_t>& places, int64_t num_bags,
                                        const py::object& weights) const {
    const auto* from = input<int64_t>(ids, "ids", {kAny});
    const auto* ends = input<int64_t>(offsets, "offsets", {kAny});
    const T* scales = optional_input<T>(weights, "weights", {ids.shape(0)});
    if (num_bags < 0) refuse("num_bags must not be negative, found " + std::to_string(num_bags));
    check_places(places);
    check_count(ids.shape(0));
    std::vector<FeatureIds<T>> inputs;
    for (size_t i = 0; i < features_.size(); ++i) {
      if (places[i] < 0 || (places[i] + 1) * num_bags >= offsets.shape(0)) {
        refuse("feature " + std::to_string(i) + " has place " + std::to_string(places[i]) +
               ", but offsets are for fewer features of " + std::to_string(num_bags) + " bags");
      }
      inputs.push_back({&features_[i].table->view(), from, ends + places[i] * num_bags, num_bags,
                        scales, features_[i].is_mean});
    }
    return inputs;
  }

  template <class T>
  std::vector<FeatureIds<T>> single_ids(
      const py::array& ids, const std::vector<std::pair<int64_t, int64_t>>& spans) const {
    const auto* from = input<int64_t>(ids, "ids", {kAny});
    check_count(ids.shape(0));
    if (spans.size() != features_.size()) {
      refuse(std::to_string(features_.size()) + " spans were asked for, found " +
             std::to_string(spans.size()));
    }
    std::vector<FeatureIds<T>> inputs;
    for (size_t i = 0; i < features_.size(); ++i) {
      const auto [begin, end] = spans[i];
      if (begin < 0 || begin > end || end > ids.shape(0)) refuse("a span is outside ids");
      inputs.push_back(
          {&features_[i].table->view(), from + begin, nullptr, end - begin, nullptr, false});
    }
    return inputs;
  }

  void check_places(const std::vector<int64_t>& places) const {
    if (places.size() == features_.size()) return;
    refuse(std::to_string(features_.size()) + " places were asked for, found " +
           std::to_string(places.size()));
  }

  static void check_count(int64_t count) {
    if (count <= kernels::kMostIds) return;
    refuse("at most " + std::to_string(kernels::kMostIds) + " ids in one call, found " +
           std::to_string(count) + "; split the batch");
  }

  template <class T>
  py::array pool_as(const py::array& ids, const py::array& offsets,
                    const std::vector<int64_t>& places, int64_t num_bags,
                    const py::object& weights) const {
    const auto inputs = pooled_ids<T>(ids, offsets, places, num_bags, weights);
    py::array_t<T> out({num_bags, width_});
    std::vector<FeatureLookup<T>> lookups;
    for (size_t i = 0; i < inputs.size(); ++i) {
      lookups.push_back({inputs[i], out.mutable_data() + features_[i].column, width_});
    }
    const GilRelease release;
    collection::look_up(process_executor(), lookups);
    return out;
  }

  template <class T>
  PyGradientSources bag_gradients_as(const py::array& ids, const py::array& offsets,
                                     const std::vector<int64_t>& places, int64_t num_bags,
                                     const py::object& weights, const py::array& gradient) const {
    const auto inputs = pooled_ids<T>(ids, offsets, places, num_bags, weights);
    const T* from = input<T>(gradient, "gradient", {num_bags, width_});
    PyGradientSources::Part<T> part;
    for (size_t i = 0; i < inputs.size(); ++i) {
      part.features.push_back(
          {features_[i].table, {inputs[i], from + features_[i].column, width_}});
    }
    part.spans = {{from, num_bags * width_}};
    return {std::move(part), py::make_tuple(ids, offsets, weights, gradient)};
  }

  template <class T>
  py::list gather_as(const py::array& ids,
                     const std::vector<std::pair<int64_t, int64_t>>& spans) const {
    const auto inputs = single_ids<T>(ids, spans);
    py::list outputs;
    std::vector<FeatureLookup<T>> lookups;
    for (const FeatureIds<T>& each : inputs) {
      py::array_t<T> out({each.count, each.table->layout.dim});
      lookups.push_back({each, out.mutable_data(), each.table->layout.dim});
      outputs.append(std::move(out));
    }
    const GilRelease release;
    collection::look_up(process_executor(), lookups);
    return outputs;
  }

  template <class T>
  PyGradientSources id_gradients_as(const py::array& ids,
                                    const std::vector<std::pair<int64_t, int64_t>>& spans,
                                    const std::vector<py::array>& gradients) const {
    const auto inputs = single_ids<T>(ids, spans);
    if (gradients.size() != inputs.size()) refuse("one gradient for each feature is asked for");
    PyGradientSources::Part<T> part;
    py::list owners;
    owners.append(ids);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t dim = inputs[i].table->layout.dim;
      const T* from = input<T>(gradients[i], "gradient", {inputs[i].count, dim});
      part.features.push_back({features_[i].table, {inputs[i], from, dim}});
      part.spans.push_back({from, inputs[i].count * dim});
      owners.append(gradients[i]);
    }
    return {std::move(part), std::move(owners)};
  }

  std::vector<Feature> features_;
  int64_t width_ = 0;
};

// A number by which native callers look up in a collection, for the life of this object.
class PyPublication {
 public:
  PyPublication() : number_(collection::new_number()) {}
  PyPublication(const PyPublication&) = delete;
  PyPublication& operator=(const PyPublication&) = delete;

  ~PyPublication() {
    const GilRelease release;
    collection::withdraw(number_);
  }

  int64_t number() const { return number_; }

  // Who looks up by the number looks up in `shown` from now on.
  void show(const PyCollection& shown) {
    auto published = shown.published();
    {
      const GilRelease release;
      collection::publish(number_, std::move(published));
    }
    tables_ = shown.tables();
  }

 private:
  const int64_t number_;
  std::vector<SharedView> tables_;
};

template <class T>
PyGradientSources key_gradients_as(const SharedView& table, const py::array& keys,
                                   const py::array& gradients) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t dim = table->view().layout.dim;
  const T* values = input<T>(gradients, "gradients", {keys.shape(0), dim});
  PyGradientSources::Part<T> part;
  part.features.push_back(
      {table, {{&table->view(), from, nullptr, keys.shape(0), nullptr, false}, values, dim}});
  part.spans = {{values, keys.shape(0) * dim}};
  return {std::move(part), py::make_tuple(keys, gradients)};
}

PyGradientSources key_gradients(const SharedView& table, const py::array& keys,
                                const py::array& gradients) {
  return table->is_double() ? key_gradients_as<double>(table, keys, gradients)
                            : key_gradients_as<float>(table, keys, gradients);
}

template <class T>
py::tuple summed_as(const PyGradientSources& sources, const PyTableView* table) {
  std::vector<collection::FeatureGradient<T>> gradients;
  append_gradients<T>(sources, table, gradients);
  const int64_t dim = table->view().layout.dim;
  collection::GroupedGradients<T> grouped;
  {
    const GilRelease release;
    grouped = collection::group(process_executor(), gradients);
  }
  py::array_t<int64_t> keys(grouped.num_keys, grouped.keys.get());
  py::array_t<T> sums({grouped.num_keys, dim});
  T* out = sums.mutable_data();
  {
    const GilRelease release;
    collection::sum(process_executor(), grouped, dim, out);
  }
  return py::make_tuple(std::move(keys), std::move(sums));
}

}  // namespace

kernels::RowType row_type_named(const std::string& dtype) {
  if (dtype == "float32") return kernels::RowType::float32;
  if (dtype == "float64") return kernels::RowType::float64;
  if (dtype == "float16") return kernels::RowType::float16;
  if (dtype == "bfloat16") return kernels::RowType::bfloat16;
  refuse("dtype must be float32, float64, float16 or bfloat16, found '" + dtype + "'");
}

PyTableView::PyTableView(const std::string& dtype, const kernels::InitializerSpec& initializer)
    : view_{kernels::make_row_layout(row_type_named(dtype), initializer.dim, 0), initializer} {}

void PyTableView::attach(py::capsule capsule, int64_t state_width) {
  const char* name = capsule.name();
  if (name == nullptr || std::strcmp(name, SPARRING_STORAGE_CAPSULE) != 0) {
    refuse(std::string("a capsule named \"") + SPARRING_STORAGE_CAPSULE + "\" was asked for");
  }
  auto* storage = capsule.get_pointer<SparringStorage>();
  const auto layout =
      kernels::make_row_layout(view_.layout.type, view_.layout.dim, state_width);
  const abi::StorageHandle handle(storage);
  if (handle.row_bytes() != static_cast<uint64_t>(layout.row_bytes)) {
    refuse("rows of " + std::to_string(layout.row_bytes) + " bytes were asked for, the storage has " +
           std::to_string(handle.row_bytes()));
  }
  capsule_ = std::move(capsule);
  handle_.emplace(handle);
  view_.layout = layout;
  view_.storage = &*handle_;
}

void PyTableView::detach() {
  view_.storage = nullptr;
  handle_.reset();
  capsule_ = py::object();
}

void PyTableView::close() {
  detach();
  view_.is_closed = true;
}

void PyTableView::begin_load() {
  const GilRelease release;
  collection::begin_load(view_);
}

void PyTableView::end_load(bool is_whole) {
  const GilRelease release;
  collection::end_load(view_, is_whole);
}

double PyGradientSources::largest_gradient() const {
  if (!largest_) {
    largest_ = std::visit([](const auto& part) { return largest_of(part); }, parts_);
  }
  return *largest_;
}

py::tuple PyGradientSources::summed(const SharedView& table) const {
  return is_double() ? summed_as<double>(*this, table.get()) : summed_as<float>(*this, table.get());
}

}  // namespace sparring::bindings

void bind_collection(py::module_& module) {
  using namespace sparring::bindings;
  py::class_<PyTableView, SharedView>(module, "TableView")
      .def(py::init<const std::string&, const sparring::kernels::InitializerSpec&>(),
           py::arg("dtype"), py::arg("initializer"))
      .def("attach", &PyTableView::attach, py::arg("capsule"), py::arg("state_width"))
      .def("detach", &PyTableView::detach)
      .def("close", &PyTableView::close)
      .def("begin_load", &PyTableView::begin_load)
      .def("end_load", &PyTableView::end_load, py::arg("is_whole"))
      .def_property_readonly("is_cut_short", &PyTableView::is_cut_short);
  py::class_<PyGradientSources>(module, "GradientSources")
      .def("summed", &PyGradientSources::summed, py::arg("table"))
      .def_property_readonly("is_finite", [](const PyGradientSources& self) {
        const GilRelease release;
        return std::isfinite(self.largest_gradient());
      });
  py::class_<PyCollection>(module, "Collection")
      .def(py::init<const std::vector<std::pair<SharedView, std::string>>&>(), py::arg("features"))
      .def_property_readonly("width", &PyCollection::width)
      .def("pool", &PyCollection::pool, py::arg("ids"), py::arg("offsets"), py::arg("places"),
           py::arg("num_bags"), py::arg("weights") = py::none())
      .def("gather", &PyCollection::gather, py::arg("ids"), py::arg("spans"))
      .def("bag_gradients", &PyCollection::bag_gradients, py::arg("ids"), py::arg("offsets"),
           py::arg("places"), py::arg("num_bags"), py::arg("weights"), py::arg("gradient"))
      .def("id_gradients", &PyCollection::id_gradients, py::arg("ids"), py::arg("spans"),
           py::arg("gradients"));
  py::class_<PyPublication>(module, "Publication")
      .def(py::init<>())
      .def_property_readonly("number", &PyPublication::number)
      .def("show", &PyPublication::show, py::arg("collection"));
  module.def("lookups", [] {
    return py::capsule(sparring::collection::lookups(), SPARRING_LOOKUPS_CAPSULE);
  });
  module.def("key_gradients", &key_gradients, py::arg("table"), py::arg("keys"),
             py::arg("gradients"));
}
