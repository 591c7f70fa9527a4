// sparring._native.TableView, Collection and GradientSources: lookups of whole batches and their
// gradients. Long because the same functions check collections, plans and sources, and create them
// for both computing types.
#include "bindings/collection.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "collection/lookup.h"
#include "collection/plan.h"
#include "collection/published.h"
#include "execution/pool.h"
#include "execution/senders.h"
#include "kernels/dedup.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

using collection::FeatureIds;
using collection::FeatureLookup;
using collection::KnownRows;
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
  // NaN replaces the maximum, and stays.
  const auto keep = [](double& maximum, double found) {
    if (!(found <= maximum) && maximum == maximum) maximum = found;
  };
  for (const auto& span : part.spans) {
    const int64_t stride = span.rows.stride;
    kernels::parallel_for(
        process_executor(), span.count,
        kernels::grain_for(span.width * static_cast<int64_t>(sizeof(T))),
        [&, from = span.rows.data](int64_t begin, int64_t end) {
          double found = 0;
          if (stride == span.width) {
            found = loops.largest_magnitude(from + begin * stride, (end - begin) * stride);
          } else {
            for (int64_t i = begin; i < end; ++i) {
              keep(found, loops.largest_magnitude(from + i * stride, span.width));
            }
          }
          const std::lock_guard<std::mutex> lock(mutex);
          keep(largest, found);
        });
  }
  return largest;
}

// Computes one embedding per bag and feature, concatenated. `known`: the known rows of each feature, or
// empty.
template <class T>
py::array pooled(const std::vector<FeatureIds<T>>& inputs, const std::vector<KnownRows>& known,
                 const std::vector<int64_t>& columns, int64_t num_bags, int64_t width) {
  py::array_t<T> out({num_bags, width});
  std::vector<FeatureLookup<T>> lookups;
  for (size_t i = 0; i < inputs.size(); ++i) {
    lookups.push_back({inputs[i], out.mutable_data() + columns[i], width,
                       known.empty() ? KnownRows{} : known[i]});
  }
  const GilRelease release;
  collection::look_up(process_executor(), lookups);
  return out;
}

// Computes one embedding per id and feature. `known`: the known rows of each feature, or empty.
template <class T>
py::list gathered(const std::vector<FeatureIds<T>>& inputs, const std::vector<KnownRows>& known) {
  py::list outputs;
  std::vector<FeatureLookup<T>> lookups;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t dim = inputs[i].table->layout.dim;
    py::array_t<T> out({inputs[i].count, dim});
    lookups.push_back(
        {inputs[i], out.mutable_data(), dim, known.empty() ? KnownRows{} : known[i]});
    outputs.append(std::move(out));
  }
  const GilRelease release;
  collection::look_up(process_executor(), lookups);
  return outputs;
}

// A view of the keys of a plan, which keeps the plan.
template <class T>
py::array keys_of(const std::shared_ptr<const collection::TablePlan<T>>& plan) {
  using Shared = std::shared_ptr<const collection::TablePlan<T>>;
  const py::capsule owner(new Shared(plan),
                          [](void* memory) { delete static_cast<Shared*>(memory); });
  return py::array_t<int64_t>(plan->num_keys, plan->keys.get(), owner);
}

// A batch of training: the plan of each table, from the lookup to the gradients.
class PyBatchPlan {
 public:
  template <class T>
  struct Table {
    SharedView view;
    std::vector<size_t> features;                    // features that look up in the table
    std::shared_ptr<const collection::TablePlan<T>> plan;  // or NULL: its storage has no handles
    const T* embeddings = nullptr;  // (u, dim) by key of the plan, or NULL: rows are in the storage
  };
  template <class T>
  struct Part {
    std::vector<FeatureIds<T>> inputs;
    std::vector<int64_t> columns;
    int64_t num_bags;  // number of bags of each feature, or kAny if ids are not pooled
    int64_t width;
    std::vector<Table<T>> tables;
  };

  // `finds_rows`: looks for the rows of the batch, which `pool` or `gather` reads.
  template <class T>
  PyBatchPlan(Part<T> part, py::object owners, bool finds_rows) : owners_(std::move(owners)) {
    if (finds_rows) {
      const GilRelease release;
      make_plans(part, true);
    }
    part_ = std::move(part);
  }

  // The distinct ids of each table, in the order in which the tables occur in the features.
  py::list keys() {
    return std::visit(
        [](auto& part) {
          {
            const GilRelease release;
            make_plans(part, false);
          }
          py::list keys;
          for (const auto& table : part.tables) keys.append(keys_of(table.plan));
          return keys;
        },
        part_);
  }

  // From now on, `pool` and `gather` read these embeddings (u, dim) of the `keys` of each table.
  void set_embeddings(const std::vector<py::array>& embeddings) {
    std::visit([&](auto& part) { set_embeddings_of(part, embeddings); }, part_);
    owners_ = py::make_tuple(owners_, embeddings);
  }

  py::array pool() const {
    return std::visit(
        [](const auto& part) {
          return pooled(part.inputs, known_rows(part), part.columns, part.num_bags, part.width);
        },
        part_);
  }

  py::list gather() const {
    return std::visit([](const auto& part) { return gathered(part.inputs, known_rows(part)); },
                      part_);
  }

  // One gradient for the result of `pool`; one per feature for the results of `gather`.
  PyGradientSources gradients(const std::vector<py::array>& given) const {
    return std::visit([&](const auto& part) { return sources_of(part, given); }, part_);
  }

 private:
  // Makes the plan of each table. If `finds_rows`, only of tables whose storage has handles, with the
  // handles of its rows.
  template <class T>
  static void make_plans(Part<T>& part, bool finds_rows) {
    auto plan = [&](int64_t place) {
      make(part, part.tables[static_cast<size_t>(place)], finds_rows);
    };
    int64_t ids = 0, bytes = 0;
    for (const FeatureIds<T>& each : part.inputs) {
      const int64_t own = collection::num_ids(each);
      ids += own;
      bytes += own * each.table->layout.dim * static_cast<int64_t>(sizeof(T));
    }
    const SparringExecutor* const executor =
        kernels::executor_for_batch(process_executor(), ids, bytes);
    execution::sync_wait(execution::schedule(execution::executor_scheduler(executor)) |
                         execution::bulk(static_cast<int64_t>(part.tables.size()), plan));
  }

  template <class T>
  static void make(const Part<T>& part, Table<T>& table, bool finds_rows) {
    const abi::StorageHandle* const storage = table.view->view().storage;
    if (finds_rows && (storage == nullptr || !storage->keeps_handles())) return;
    std::vector<FeatureIds<T>> inputs;
    for (const size_t feature : table.features) inputs.push_back(part.inputs[feature]);
    auto plan = collection::make_plan(process_executor(), std::move(inputs), true);
    if (finds_rows) collection::find_handles(process_executor(), plan);
    table.plan = std::make_shared<const collection::TablePlan<T>>(std::move(plan));
  }

  template <class T>
  static void set_embeddings_of(Part<T>& part, const std::vector<py::array>& embeddings) {
    if (embeddings.size() != part.tables.size()) {
      refuse("embeddings of " + std::to_string(part.tables.size()) + " tables are expected, found " +
             std::to_string(embeddings.size()));
    }
    for (size_t i = 0; i < embeddings.size(); ++i) {
      Table<T>& table = part.tables[i];
      if (!table.plan) refuse("the plan has no keys for these embeddings; call keys() first");
      table.embeddings = input<T>(embeddings[i], "embeddings",
                                  {table.plan->num_keys, table.view->view().layout.dim});
    }
  }

  template <class T>
  static std::vector<KnownRows> known_rows(const Part<T>& part) {
    std::vector<KnownRows> known(part.inputs.size());
    for (const Table<T>& table : part.tables) {
      if (!table.plan || !(table.plan->handles || table.embeddings)) continue;
      const uint32_t* inverse = table.plan->inverse.get();
      for (const size_t feature : table.features) {
        known[feature] = {inverse, table.plan->handles.get(), table.plan->generation,
                          table.embeddings};
        inverse += collection::num_ids(part.inputs[feature]);
      }
    }
    return known;
  }

  template <class T>
  PyGradientSources sources_of(const Part<T>& part, const std::vector<py::array>& given) const {
    const bool is_pooled = part.num_bags != kAny;
    const size_t num_wanted = is_pooled ? 1 : part.inputs.size();
    if (given.size() != num_wanted) {
      refuse(std::to_string(num_wanted) + " gradients are expected, found " +
             std::to_string(given.size()));
    }
    PyGradientSources::Part<T> sources;
    std::vector<SharedView> views(part.inputs.size());
    for (const Table<T>& table : part.tables) {
      for (const size_t feature : table.features) views[feature] = table.view;
      sources.plans.push_back({table.view, table.plan});
    }
    StridedRows<T> from{};
    if (is_pooled) {
      from = strided_input<T>(given[0], "gradient", part.num_bags, part.width);
      sources.spans.push_back({from, part.num_bags, part.width});
    }
    for (size_t i = 0; i < part.inputs.size(); ++i) {
      const FeatureIds<T>& ids = part.inputs[i];
      const int64_t dim = ids.table->layout.dim;
      if (!is_pooled) {
        const auto its = strided_input<T>(given[i], "gradient", ids.count, dim);
        sources.features.push_back({views[i], {ids, its.data, its.stride}});
        sources.spans.push_back({its, ids.count, dim});
      } else {
        sources.features.push_back({views[i], {ids, from.data + part.columns[i], from.stride}});
      }
    }
    return {std::move(sources), py::make_tuple(owners_, given)};
  }

  std::variant<Part<float>, Part<double>> part_;
  py::object owners_;
};

// Features that look up in tables, concatenated in one output.
class PyCollection {
 public:
  // (table, pooling) of each feature, in the order of their columns.
  explicit PyCollection(const std::vector<std::pair<SharedView, std::string>>& features) {
    for (const auto& [table, pooling] : features) {
      if (!table) refuse("collection: a table must not be None");
      if (table->is_double() != features.front().first->is_double()) {
        refuse("the tables of a collection must have the same computing dtype; create a "
               "collection per dtype");
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

  PyBatchPlan plan_bags(const py::array& ids, const py::array& offsets,
                        const std::vector<int64_t>& places, int64_t num_bags,
                        const py::object& weights, bool finds_rows) const {
    py::object owners = py::make_tuple(ids, offsets, weights);
    if (is_double()) {
      return make_plan(pooled_ids<double>(ids, offsets, places, num_bags, weights), num_bags,
                       std::move(owners), finds_rows);
    }
    return make_plan(pooled_ids<float>(ids, offsets, places, num_bags, weights), num_bags,
                     std::move(owners), finds_rows);
  }

  py::list gather(const py::array& ids, const std::vector<std::pair<int64_t, int64_t>>& spans) const {
    return is_double() ? gather_as<double>(ids, spans) : gather_as<float>(ids, spans);
  }

  PyBatchPlan plan_ids(const py::array& ids, const std::vector<std::pair<int64_t, int64_t>>& spans,
                       bool finds_rows) const {
    if (is_double()) return make_plan(single_ids<double>(ids, spans), kAny, ids, finds_rows);
    return make_plan(single_ids<float>(ids, spans), kAny, ids, finds_rows);
  }

 private:
  struct Feature {
    SharedView table;
    int64_t column;
    bool is_mean;
  };

  bool is_double() const { return features_.front().table->is_double(); }

  // `num_bags`: number of bags of each feature, or kAny if ids are not pooled.
  template <class T>
  PyBatchPlan make_plan(std::vector<FeatureIds<T>> inputs, int64_t num_bags, py::object owners,
                        bool finds_rows) const {
    PyBatchPlan::Part<T> part{std::move(inputs), {}, num_bags, width_, {}};
    for (size_t i = 0; i < features_.size(); ++i) {
      part.columns.push_back(features_[i].column);
      const SharedView& view = features_[i].table;
      const auto is_its = [&](const auto& each) { return each.view == view; };
      auto at = std::find_if(part.tables.begin(), part.tables.end(), is_its);
      if (at == part.tables.end()) at = part.tables.insert(at, {view, {}, nullptr, nullptr});
      at->features.push_back(i);
    }
    return PyBatchPlan(std::move(part), std::move(owners), finds_rows);
  }

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
               ", but offsets contain fewer features of " + std::to_string(num_bags) + " bags");
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
      refuse(std::to_string(features_.size()) + " spans are expected, found " +
             std::to_string(spans.size()));
    }
    std::vector<FeatureIds<T>> inputs;
    for (size_t i = 0; i < features_.size(); ++i) {
      const auto [begin, end] = spans[i];
      if (begin < 0 || begin > end || end > ids.shape(0)) refuse("spans must be ranges within ids");
      inputs.push_back(
          {&features_[i].table->view(), from + begin, nullptr, end - begin, nullptr, false});
    }
    return inputs;
  }

  void check_places(const std::vector<int64_t>& places) const {
    if (places.size() == features_.size()) return;
    refuse(std::to_string(features_.size()) + " places are expected, found " +
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
    std::vector<int64_t> columns;
    for (const Feature& each : features_) columns.push_back(each.column);
    return pooled<T>(pooled_ids<T>(ids, offsets, places, num_bags, weights), {}, columns, num_bags,
                     width_);
  }

  template <class T>
  py::list gather_as(const py::array& ids,
                     const std::vector<std::pair<int64_t, int64_t>>& spans) const {
    return gathered<T>(single_ids<T>(ids, spans), {});
  }

  std::vector<Feature> features_;
  int64_t width_ = 0;
};

// The number by which native callers use a collection. It is valid for the lifetime of this object.
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

  // From now on, lookups by the number use `shown`.
  void show(const PyCollection& shown) {
    auto published = shown.published();
    {
      const GilRelease release;
      collection::publish(number_, std::move(published));
    }
    tables_ = shown.tables();
  }

  // Lookups by the number fail with `reason`, until a collection is shown again.
  void refuse(std::string reason) {
    {
      const GilRelease release;
      collection::refuse_lookups(number_, std::move(reason));
    }
    tables_.clear();
  }

 private:
  const int64_t number_;
  std::vector<SharedView> tables_;
};

template <class T>
PyGradientSources key_gradients_as(const SharedView& table, const py::array& keys,
                                   const py::array& gradients, bool are_distinct) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t dim = table->view().layout.dim;
  const T* values = input<T>(gradients, "gradients", {keys.shape(0), dim});
  const FeatureIds<T> ids{&table->view(), from, nullptr, keys.shape(0), nullptr, false};
  PyGradientSources::Part<T> part;
  part.features.push_back({table, {ids, values, dim}});
  if (are_distinct) {
    const GilRelease release;
    part.plans = {{table, std::make_shared<const collection::TablePlan<T>>(
                              collection::plan_distinct(ids))}};
  }
  part.spans.push_back({{values, dim}, keys.shape(0), dim});
  return {std::move(part), py::make_tuple(keys, gradients)};
}

PyGradientSources key_gradients(const SharedView& table, const py::array& keys,
                                const py::array& gradients, bool are_distinct) {
  return table->is_double() ? key_gradients_as<double>(table, keys, gradients, are_distinct)
                            : key_gradients_as<float>(table, keys, gradients, are_distinct);
}

void check_row_bytes(const py::array& rows, const collection::KeyRows& keys) {
  const auto found = static_cast<uint64_t>(rows.shape(1) * rows.itemsize());
  if (found == keys.storage->row_bytes()) return;
  refuse("rows of " + std::to_string(keys.storage->row_bytes()) + " bytes are expected, found " +
         std::to_string(found));
}

// Sums the gradients of the tables at `places` in two loops over the tables. Writes keys (u) and sums
// (u, dim) of each to `summed`.
template <class T>
void sum_tables_as(const std::vector<const PyGradientSources*>& sources,
                   const std::vector<SharedView>& tables, const std::vector<size_t>& places,
                   std::vector<py::tuple>& summed) {
  const auto num_tables = static_cast<int64_t>(places.size());
  std::vector<collection::GroupedGradients<T>> grouped(places.size());
  std::vector<std::vector<collection::FeatureGradient<T>>> gradients(places.size());
  std::vector<T*> sums;
  int64_t ids = 0, bytes = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    append_gradients<T>(*sources[places[i]], tables[places[i]].get(), gradients[i]);
    for (const auto& each : gradients[i]) {
      const int64_t own = collection::num_ids(each.input);
      ids += own;
      bytes += own * each.input.table->layout.dim * static_cast<int64_t>(sizeof(T));
    }
  }
  const SparringExecutor* const executor =
      kernels::executor_for_batch(process_executor(), ids, bytes);
  const auto for_tables = [&](const auto& body) {
    execution::sync_wait(execution::schedule(execution::executor_scheduler(executor)) |
                         execution::bulk(num_tables, body));
  };
  {
    const GilRelease release;
    for_tables([&](int64_t at) {
      const auto i = static_cast<size_t>(at);
      auto plan = plan_of<T>(*sources[places[i]], tables[places[i]].get());
      grouped[i] = plan ? collection::lay_out(process_executor(), std::move(plan), gradients[i])
                        : collection::group(process_executor(), gradients[i]);
    });
  }
  for (size_t i = 0; i < places.size(); ++i) {
    py::array_t<T> rows({grouped[i].plan->num_keys, tables[places[i]]->view().layout.dim});
    sums.push_back(rows.mutable_data());
    summed[places[i]] = py::make_tuple(keys_of(grouped[i].plan), std::move(rows));
  }
  const GilRelease release;
  for_tables([&](int64_t at) {
    const auto i = static_cast<size_t>(at);
    const int64_t dim = tables[places[i]]->view().layout.dim;
    collection::sum(process_executor(), grouped[i], dim, sums[i]);
  });
}

// Returns the keys (u) and the sums of their gradients (u, dim) of each table.
std::vector<py::tuple> sum_tables(const std::vector<const PyGradientSources*>& sources,
                                  const std::vector<SharedView>& tables) {
  if (sources.size() != tables.size()) {
    refuse("gradients of " + std::to_string(tables.size()) + " tables are expected, found " +
           std::to_string(sources.size()));
  }
  std::vector<size_t> floats, doubles;
  for (size_t i = 0; i < tables.size(); ++i) {
    (sources[i]->is_double() ? doubles : floats).push_back(i);
  }
  std::vector<py::tuple> summed(tables.size());
  if (!floats.empty()) sum_tables_as<float>(sources, tables, floats, summed);
  if (!doubles.empty()) sum_tables_as<double>(sources, tables, doubles, summed);
  return summed;
}

}  // namespace

kernels::RowType row_type_named(const std::string& dtype) {
  if (dtype == "float32") return kernels::RowType::float32;
  if (dtype == "float64") return kernels::RowType::float64;
  if (dtype == "float16") return kernels::RowType::float16;
  if (dtype == "bfloat16") return kernels::RowType::bfloat16;
  if (dtype == "int8") return kernels::RowType::int8;
  refuse("dtype must be float32, float64, float16, bfloat16 or int8, found '" + dtype + "'");
}

PyTableView::PyTableView(const std::string& dtype, const kernels::InitializerSpec& initializer)
    : view_{kernels::make_row_layout(row_type_named(dtype), initializer.dim, 0), initializer} {}

void PyTableView::attach(py::capsule capsule, int64_t state_width) {
  const char* name = capsule.name();
  if (name == nullptr || std::strcmp(name, SPARRING_STORAGE_CAPSULE) != 0) {
    refuse(std::string("a capsule named \"") + SPARRING_STORAGE_CAPSULE + "\" is expected");
  }
  auto* storage = capsule.get_pointer<SparringStorage>();
  const auto layout =
      kernels::make_row_layout(view_.layout.type, view_.layout.dim, state_width);
  const abi::StorageHandle handle(storage);
  if (handle.row_bytes() != static_cast<uint64_t>(layout.row_bytes)) {
    refuse("rows of " + std::to_string(layout.row_bytes) + " bytes are expected, but the rows of the storage "
           "have " + std::to_string(handle.row_bytes()) + " bytes; open it for this table");
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
  return sum_tables({this}, {table})[0];
}

template <class T>
std::unique_ptr<PyRowHandles> row_handles_as(const PyGradientSources& sources,
                                             const SharedView& table) {
  auto plan = plan_of<T>(sources, table.get());
  if (!plan || !plan->handles) return nullptr;
  return std::make_unique<PyRowHandles>(table, std::move(plan));
}

std::unique_ptr<PyRowHandles> PyGradientSources::row_handles(const SharedView& table) const {
  return is_double() ? row_handles_as<double>(*this, table) : row_handles_as<float>(*this, table);
}

py::tuple evicted_arrays(const abi::EvictedRows& evicted, int64_t row_bytes) {
  const auto count = static_cast<py::ssize_t>(evicted.keys.size());
  return py::make_tuple(py::array_t<int64_t>(count, evicted.keys.data()),
                        py::array_t<uint8_t>({count, static_cast<py::ssize_t>(row_bytes)},
                                             reinterpret_cast<const uint8_t*>(evicted.rows.data())),
                        py::array_t<uint64_t>(count, evicted.scores.data()));
}

const collection::KeyRows& PyRowHandles::rows() const {
  if (table_->view().storage != rows_.storage) {
    refuse("the rows were looked up in a storage that the table no longer has; run the forward pass again");
  }
  return rows_;
}

void PyRowHandles::find(py::array& rows, py::array& found) const {
  const collection::KeyRows& keys = this->rows();
  check_layout(rows, "rows", {keys.count, kAny}, true);
  check_layout(found, "found", {keys.count}, true);
  check_row_bytes(rows, keys);
  auto* const to = static_cast<std::byte*>(rows.mutable_data());
  auto* const is_there = static_cast<uint8_t*>(found.mutable_data());
  const GilRelease release;
  collection::copy_rows(process_executor(), keys, to, is_there);
}

py::tuple PyRowHandles::upsert(const py::array& rows) const {
  const collection::KeyRows& keys = this->rows();
  check_layout(rows, "rows", {keys.count, kAny}, false);
  check_row_bytes(rows, keys);
  const auto* const from = static_cast<const std::byte*>(rows.data());
  abi::EvictedRows left;
  {
    const GilRelease release;
    left = collection::put_rows(keys, from);
  }
  return evicted_arrays(left, static_cast<int64_t>(keys.storage->row_bytes()));
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
  py::class_<PyRowHandles>(module, "RowHandles")
      .def("find", &PyRowHandles::find, py::arg("rows"), py::arg("found"))
      .def("upsert", &PyRowHandles::upsert, py::arg("rows"));
  py::class_<PyGradientSources>(module, "GradientSources")
      .def("summed", &PyGradientSources::summed, py::arg("table"))
      .def("row_handles", &PyGradientSources::row_handles, py::arg("table"))
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
      .def("plan_bags", &PyCollection::plan_bags, py::arg("ids"), py::arg("offsets"),
           py::arg("places"), py::arg("num_bags"), py::arg("weights") = py::none(),
           py::arg("finds_rows") = true)
      .def("plan_ids", &PyCollection::plan_ids, py::arg("ids"), py::arg("spans"),
           py::arg("finds_rows") = true);
  py::class_<PyBatchPlan>(module, "BatchPlan")
      .def("keys", &PyBatchPlan::keys)
      .def("set_embeddings", &PyBatchPlan::set_embeddings, py::arg("embeddings"))
      .def("pool", &PyBatchPlan::pool)
      .def("gather", &PyBatchPlan::gather)
      .def("gradients", &PyBatchPlan::gradients, py::arg("gradients"));
  py::class_<PyPublication>(module, "Publication")
      .def(py::init<>())
      .def_property_readonly("number", &PyPublication::number)
      .def("show", &PyPublication::show, py::arg("collection"))
      .def("refuse", &PyPublication::refuse, py::arg("reason"));
  module.def("lookups", [] {
    return py::capsule(sparring::collection::lookups(), SPARRING_LOOKUPS_CAPSULE);
  });
  module.def("sum_tables", &sum_tables, py::arg("sources"), py::arg("tables"));
  module.def("key_gradients", &key_gradients, py::arg("table"), py::arg("keys"),
             py::arg("gradients"), py::arg("are_distinct") = false);
}
