// The key operations, on NumPy arrays. This file checks dtypes, shapes and layouts. It does not
// check the contents of inverse, segments and offsets; `sparring.kernels.functions` checks them
// for callers with arrays from outside.
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "bindings/arrays.h"
#include "execution/pool.h"
#include "kernels/bytes.h"
#include "kernels/check.h"
#include "kernels/dedup.h"
#include "kernels/finite.h"
#include "kernels/gather.h"
#include "kernels/halves.h"
#include "kernels/initialize.h"
#include "kernels/pool.h"
#include "kernels/route.h"
#include "kernels/scatter.h"
#include "kernels/simd.h"
#include "bindings/gil.h"
#include "sparring/initial_value.h"

namespace py = pybind11;
namespace kernels = sparring::kernels;
using sparring::bindings::check_contiguous;
using sparring::bindings::check_layout;
using sparring::bindings::given_or_new;
using sparring::bindings::has_dtype;
using sparring::bindings::input;
using sparring::bindings::kAny;
using sparring::bindings::optional_input;
using sparring::bindings::output;
using sparring::bindings::refuse;
using sparring::bindings::refuse_dtype;
using sparring::bindings::row_type_of;
using sparring::bindings::with_float_dtype;
using sparring::execution::process_executor;

namespace {

void check_count(int64_t count, const char* what) {
  if (count <= kernels::kMostIds) return;
  refuse("at most " + std::to_string(kernels::kMostIds) + " " + what + " in one call, found " +
         std::to_string(count) + "; split the batch");
}

bool is_mean(std::string_view mode) {
  if (mode == "sum") return false;
  if (mode == "mean") return true;
  refuse("mode must be 'sum' or 'mean', found '" + std::string(mode) + "'");
}

py::tuple dedup(const py::array& ids) {
  const auto* from = input<int64_t>(ids, "ids", {kAny});
  const int64_t count = ids.shape(0);
  check_count(count, "ids");
  py::array_t<int64_t> keys(count);
  py::array_t<int64_t> inverse(count);
  int64_t* keys_data = keys.mutable_data();
  int64_t* inverse_data = inverse.mutable_data();
  int64_t num_keys = 0;
  {
    sparring::bindings::GilRelease release;
    num_keys = kernels::dedup(process_executor(), from, count, keys_data, inverse_data);
  }
  if (num_keys != count) keys.resize({num_keys}, false);
  return py::make_tuple(std::move(keys), std::move(inverse));
}

py::array partition(const py::array& keys) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  py::array_t<uint16_t> partitions(keys.shape(0));
  uint16_t* to = partitions.mutable_data();
  const int64_t count = keys.shape(0);
  sparring::bindings::GilRelease release;
  kernels::partition(process_executor(), from, count, to);
  return partitions;
}

// The arguments of a route, without outputs.
kernels::RouteArguments route_arguments(const py::array& keys, const py::array& owners,
                                        int32_t world_size) {
  if (world_size < 1) {
    refuse("world_size must be at least 1, found " + std::to_string(world_size));
  }
  if (world_size > sparring::kNumPartitions) {
    refuse("world_size must be at most " + std::to_string(sparring::kNumPartitions) +
           ", the number of partitions, found " + std::to_string(world_size));
  }
  kernels::RouteArguments arguments{};
  arguments.keys = input<int64_t>(keys, "keys", {kAny});
  arguments.count = keys.shape(0);
  arguments.owners = input<int32_t>(owners, "owners", {sparring::kNumPartitions});
  arguments.world_size = world_size;
  uint32_t largest = 0;
  for (int i = 0; i < sparring::kNumPartitions; ++i) {
    largest = std::max(largest, static_cast<uint32_t>(arguments.owners[i]));
  }
  if (largest >= static_cast<uint32_t>(world_size)) {
    refuse("owners must be ranks from 0 to " + std::to_string(world_size - 1) + ", found " +
           std::to_string(static_cast<int32_t>(largest)) + "; use a shard map of this world");
  }
  return arguments;
}

py::tuple route(const py::array& keys, const py::array& owners, int32_t world_size) {
  kernels::RouteArguments arguments = route_arguments(keys, owners, world_size);
  py::array_t<int64_t> order(arguments.count);
  py::array_t<int64_t> offsets(py::ssize_t{world_size} + 1);
  arguments.order = order.mutable_data();
  arguments.offsets = offsets.mutable_data();
  {
    sparring::bindings::GilRelease release;
    kernels::route(process_executor(), arguments);
  }
  return py::make_tuple(std::move(order), std::move(offsets));
}

// Routes the keys of several tables. Returns the order (u) of each table, the offsets
// (tables, world_size + 1), and for each owner its keys of all tables, one table after the other.
py::tuple route_tables(const std::vector<py::array>& keys, const std::vector<py::array>& owners,
                       int32_t world_size) {
  if (keys.size() != owners.size()) {
    refuse("owners of " + std::to_string(keys.size()) + " tables are expected, found " +
           std::to_string(owners.size()));
  }
  const auto num_owners = static_cast<int64_t>(world_size);
  const auto num_tables = static_cast<int64_t>(keys.size());
  std::vector<kernels::RouteArguments> tables;
  py::list orders;
  py::array_t<int64_t> offsets({num_tables, num_owners + 1});
  for (size_t i = 0; i < keys.size(); ++i) {
    kernels::RouteArguments table = route_arguments(keys[i], owners[i], world_size);
    py::array_t<int64_t> order(table.count);
    table.order = order.mutable_data();
    table.offsets = offsets.mutable_data() + static_cast<int64_t>(i) * (num_owners + 1);
    orders.append(std::move(order));
    tables.push_back(table);
  }
  {
    sparring::bindings::GilRelease release;
    for (const kernels::RouteArguments& table : tables) {
      kernels::route(process_executor(), table);
    }
  }
  py::list streams;
  std::vector<int64_t*> ends;
  for (int64_t owner = 0; owner < num_owners; ++owner) {
    int64_t count = 0;
    for (const kernels::RouteArguments& table : tables) {
      count += table.offsets[owner + 1] - table.offsets[owner];
    }
    py::array_t<int64_t> stream(count);
    ends.push_back(stream.mutable_data());
    streams.append(std::move(stream));
  }
  {
    sparring::bindings::GilRelease release;
    for (int64_t owner = 0; owner < num_owners; ++owner) {
      int64_t* to = ends[static_cast<size_t>(owner)];
      for (const kernels::RouteArguments& table : tables) {
        for (int64_t i = table.offsets[owner]; i < table.offsets[owner + 1]; ++i) {
          *to++ = table.keys[table.order[i]];
        }
      }
    }
  }
  return py::make_tuple(std::move(orders), std::move(offsets), std::move(streams));
}

py::array gather(const py::array& rows, const py::array& inverse, const py::object& out) {
  return with_float_dtype(rows, "rows", [&]<class T>(T) -> py::array {
    kernels::GatherArguments<T> arguments{};
    arguments.rows = input<T>(rows, "rows", {kAny, kAny});
    arguments.dim = rows.shape(1);
    arguments.inverse = input<int64_t>(inverse, "inverse", {kAny});
    arguments.count = inverse.shape(0);
    py::array result = given_or_new<T>(out, arguments.count, arguments.dim);
    arguments.out = static_cast<T*>(result.mutable_data());
    sparring::bindings::GilRelease release;
    kernels::gather(process_executor(), arguments);
    return result;
  });
}

// The number of bags of offsets (b + 1).
int64_t num_bags_of(const py::array& offsets) {
  if (offsets.ndim() != 1 || offsets.shape(0) < 1) {
    refuse("offsets must have one dimension, and one element more than there are bags");
  }
  return offsets.shape(0) - 1;
}

py::array pool(const py::array& rows, const py::array& inverse, const py::array& offsets,
               std::string_view mode, const py::object& weights, const py::object& out) {
  return with_float_dtype(rows, "rows", [&]<class T>(T) -> py::array {
    const int64_t num_bags = num_bags_of(offsets);
    kernels::PoolArguments<T> arguments{};
    arguments.rows = input<T>(rows, "rows", {kAny, kAny});
    arguments.dim = rows.shape(1);
    arguments.inverse = input<int64_t>(inverse, "inverse", {kAny});
    arguments.count = inverse.shape(0);
    arguments.offsets = input<int64_t>(offsets, "offsets", {kAny});
    arguments.weights = optional_input<T>(weights, "weights", {arguments.count});
    arguments.is_mean = is_mean(mode);
    py::array result = given_or_new<T>(out, num_bags, arguments.dim);
    arguments.out = static_cast<T*>(result.mutable_data());
    sparring::bindings::GilRelease release;
    kernels::pool(process_executor(), arguments, num_bags);
    return result;
  });
}

py::array pool_backward(const py::array& gradient, const py::array& inverse,
                        const py::array& offsets, int64_t num_rows, std::string_view mode,
                        const py::object& weights, const py::object& out) {
  return with_float_dtype(gradient, "gradient", [&]<class T>(T) -> py::array {
    if (num_rows < 0) refuse("num_rows must not be negative, found " + std::to_string(num_rows));
    kernels::ScatterArguments<T> arguments{};
    arguments.num_bags = num_bags_of(offsets);
    arguments.source = input<T>(gradient, "gradient", {arguments.num_bags, kAny});
    arguments.dim = gradient.shape(1);
    arguments.targets = input<int64_t>(inverse, "inverse", {kAny});
    arguments.count = inverse.shape(0);
    arguments.offsets = input<int64_t>(offsets, "offsets", {kAny});
    arguments.weights = optional_input<T>(weights, "weights", {arguments.count});
    arguments.num_rows = num_rows;
    arguments.is_mean = is_mean(mode);
    check_count(arguments.count, "ids");
    check_count(arguments.num_bags, "bags");
    check_count(num_rows, "rows");
    py::array result = given_or_new<T>(out, num_rows, arguments.dim);
    arguments.out = static_cast<T*>(result.mutable_data());
    sparring::bindings::GilRelease release;
    kernels::scatter(process_executor(), arguments);
    return result;
  });
}

py::array pool_weight_gradient(const py::array& gradient, const py::array& rows,
                               const py::array& inverse, const py::array& offsets,
                               std::string_view mode) {
  return with_float_dtype(rows, "rows", [&]<class T>(T) -> py::array {
    const int64_t num_bags = num_bags_of(offsets);
    kernels::WeightGradientArguments<T> arguments{};
    arguments.rows = input<T>(rows, "rows", {kAny, kAny});
    arguments.dim = rows.shape(1);
    arguments.gradient = input<T>(gradient, "gradient", {num_bags, arguments.dim});
    arguments.inverse = input<int64_t>(inverse, "inverse", {kAny});
    arguments.count = inverse.shape(0);
    arguments.offsets = input<int64_t>(offsets, "offsets", {kAny});
    arguments.is_mean = is_mean(mode);
    py::array_t<T> result(arguments.count);
    arguments.out = result.mutable_data();
    sparring::bindings::GilRelease release;
    kernels::pool_weight_gradient(process_executor(), arguments, num_bags);
    return result;
  });
}

py::array segment_sum(const py::array& values, const py::array& segments, int64_t num_segments,
                      const py::object& out) {
  return with_float_dtype(values, "values", [&]<class T>(T) -> py::array {
    if (num_segments < 0) {
      refuse("num_segments must not be negative, found " + std::to_string(num_segments));
    }
    kernels::ScatterArguments<T> arguments{};
    arguments.source = input<T>(values, "values", {kAny, kAny});
    arguments.count = arguments.num_bags = values.shape(0);
    arguments.dim = values.shape(1);
    arguments.targets = input<int64_t>(segments, "segments", {arguments.count});
    arguments.num_rows = num_segments;
    check_count(arguments.count, "values");
    check_count(num_segments, "segments");
    py::array result = given_or_new<T>(out, num_segments, arguments.dim);
    arguments.out = static_cast<T*>(result.mutable_data());
    sparring::bindings::GilRelease release;
    kernels::scatter(process_executor(), arguments);
    return result;
  });
}

kernels::InitializerSpec make_spec(std::string_view kind, std::pair<double, double> parameters,
                                   int64_t dim, int64_t seed, uint64_t table_hash) {
  kernels::InitializerSpec spec{};
  if (!sparring::initial_kind_named(kind, &spec.kind)) {
    refuse("initializer kind '" + std::string(kind) + "' is unknown to the native kernel");
  }
  spec.first = parameters.first;
  spec.second = parameters.second;
  const double spread = spec.second - spec.first;
  // Also rejects NaN, and bounds whose difference overflows.
  if (!(std::abs(spec.first) <= std::numeric_limits<double>::max()) ||
      !(std::abs(spec.second) <= std::numeric_limits<double>::max()) ||
      !(std::abs(spread) <= std::numeric_limits<double>::max())) {
    refuse("initializer " + std::string(kind) + ": parameters must be finite, found " +
           std::to_string(spec.first) + " and " + std::to_string(spec.second));
  }
  if (dim < 1) refuse("dim must be at least 1, found " + std::to_string(dim));
  spec.dim = dim;
  spec.philox_key = sparring::philox_key_for(seed, table_hash);
  return spec;
}

// Rows of `row_bytes`; everything after the embedding is state, of `known_width` elements in int8 rows,
// or zeros.
kernels::RowLayout layout_of_rows(kernels::RowType type, int64_t dim, int64_t row_bytes,
                                  std::optional<int64_t> known_width) {
  if (type == kernels::RowType::int8) {
    if (known_width) return kernels::make_row_layout(type, dim, *known_width);
    return {type, dim, 0, row_bytes, row_bytes};
  }
  const int64_t begin = kernels::make_row_layout(type, dim, 1).state_begin;
  const int64_t state_width = std::max<int64_t>(0, row_bytes - begin) / kernels::computing_bytes(type);
  return kernels::make_row_layout(type, dim, state_width);
}

void initialize(py::array& rows, const py::array& keys, const py::array& found,
                const kernels::InitializerSpec& spec, const py::object& state) {
  kernels::InitializeRows arguments{};
  arguments.keys = input<int64_t>(keys, "keys", {kAny});
  arguments.count = keys.shape(0);
  arguments.found = input<uint8_t>(found, "found", {arguments.count});
  const kernels::RowType type = row_type_of(rows, "rows");
  check_layout(rows, "rows", {arguments.count, kAny}, true);
  const int64_t least = kernels::embedding_bytes(type, spec.dim) / kernels::element_bytes(type);
  if (rows.shape(1) < least) {
    refuse("rows must be at least " + std::to_string(least) + " wide, found " +
           std::to_string(rows.shape(1)));
  }
  std::optional<int64_t> known_width;
  if (!state.is_none()) known_width = state.cast<py::array>().size();
  arguments.layout =
      layout_of_rows(type, spec.dim, rows.shape(1) * rows.itemsize(), known_width);
  if (arguments.layout.row_bytes != rows.shape(1) * rows.itemsize()) {
    refuse("rows that are " + std::to_string(rows.shape(1)) +
           " wide cannot end with such a state; pass the width of the table");
  }
  const int64_t state_width = arguments.layout.state_width;
  if (type == kernels::RowType::float64) {
    arguments.state = optional_input<double>(state, "state", {state_width});
  } else {
    arguments.state = optional_input<float>(state, "state", {state_width});
  }
  arguments.rows = rows.mutable_data();
  sparring::bindings::GilRelease release;
  kernels::initialize(process_executor(), spec, arguments);
}

// An array of embeddings of a 16-bit type or int8 whose rows need not be contiguous.
kernels::NarrowRows narrow_rows(const py::array& rows, bool is_written) {
  const kernels::RowType type = row_type_of(rows, "rows");
  if (!kernels::is_narrow(type)) refuse_dtype(rows, "rows", "float16, bfloat16 or int8");
  // NumPy gives empty arrays any strides.
  const bool is_apart = rows.ndim() == 2 && rows.size() > 0 && rows.shape(1) > 1 &&
                        rows.strides(1) != rows.itemsize();
  const int64_t scale = type == kernels::RowType::int8 ? kernels::kScaleBytes : 0;
  if (rows.ndim() != 2 || rows.shape(1) < scale || is_apart) {
    refuse("rows must have two dimensions, at least " + std::to_string(scale) +
           " columns, and contiguous rows; copy them first");
  }
  const int64_t dim = rows.shape(1) - scale;
  if (is_written && !rows.writeable()) refuse("rows must be writable; pass a copy");
  return {type, const_cast<void*>(rows.data()), rows.strides(0), rows.shape(0), dim};
}

py::array decode(const py::array& rows) {
  const kernels::NarrowRows from = narrow_rows(rows, false);
  py::array_t<float> out({from.count, from.dim});
  float* const to = out.mutable_data();
  sparring::bindings::GilRelease release;
  if (from.dim > 0) kernels::decode(process_executor(), from, to);
  return out;
}

void encode(const py::array& embeddings, py::array& out, const py::object& keys, uint64_t seed,
            int64_t step) {
  if (embeddings.ndim() != 2) refuse("embeddings must have two dimensions");
  const int64_t count = embeddings.shape(0);
  const int64_t dim = embeddings.shape(1);
  const float* from = input<float>(embeddings, "embeddings", {count, dim});
  const kernels::NarrowRows to = narrow_rows(out, true);
  if (to.count != count || to.dim != dim) {
    refuse("out must have room for " + std::to_string(count) + " embeddings of dim " +
           std::to_string(dim) + ", found " + std::to_string(to.count) + " of dim " +
           std::to_string(to.dim));
  }
  kernels::Rounding rounding{optional_input<int64_t>(keys, "keys", {count}), seed, step};
  sparring::bindings::GilRelease release;
  if (dim > 0) kernels::encode(process_executor(), from, rounding, to);
}

// Complete int8 rows (n, row_bytes), and their layout.
kernels::RowLayout byte_layout(const py::array& rows, int64_t dim, int64_t state_width,
                               bool is_written) {
  if (dim < 1 || state_width < 0) refuse("dim must be at least 1, and state_width at least 0");
  const auto layout = kernels::make_row_layout(kernels::RowType::int8, dim, state_width);
  input<int8_t>(rows, "rows", {kAny, layout.row_bytes});
  if (is_written && !rows.writeable()) refuse("rows must be writable; pass a copy");
  return layout;
}

py::array decode_states(const py::array& rows, int64_t dim, int64_t state_width) {
  const kernels::RowLayout layout = byte_layout(rows, dim, state_width, false);
  py::array_t<float> out({static_cast<int64_t>(rows.shape(0)), state_width});
  float* const to = out.mutable_data();
  const int64_t count = rows.shape(0);
  const void* const from = rows.data();
  sparring::bindings::GilRelease release;
  kernels::decode_states(process_executor(), layout, from, count, to);
  return out;
}

void encode_states(const py::array& states, py::array& rows, int64_t dim, const py::object& keys,
                   uint64_t seed, int64_t step) {
  if (states.ndim() != 2) refuse("states must have two dimensions");
  const kernels::RowLayout layout = byte_layout(rows, dim, states.shape(1), true);
  const int64_t count = rows.shape(0);
  const float* from = input<float>(states, "states", {count, layout.state_width});
  const kernels::Rounding rounding{optional_input<int64_t>(keys, "keys", {count}), seed, step};
  void* const to = rows.mutable_data();
  sparring::bindings::GilRelease release;
  kernels::encode_states(process_executor(), layout, from, rounding, count, to);
}

bool is_finite(const py::array& values) {
  return with_float_dtype(values, "values", [&]<class T>(T) {
    check_contiguous(values, "values");
    const auto* from = static_cast<const T*>(values.data());
    const int64_t count = values.size();
    sparring::bindings::GilRelease release;
    return kernels::is_finite(process_executor(), from, count);
  });
}

bool are_finite(const std::vector<py::array>& arrays) {
  return std::all_of(arrays.begin(), arrays.end(), is_finite);
}

py::array finite_rows(const py::array& values) {
  return with_float_dtype(values, "values", [&]<class T>(T) -> py::array {
    const auto* from = input<T>(values, "values", {kAny, kAny});
    py::array_t<bool> finite(values.shape(0));
    auto* to = reinterpret_cast<uint8_t*>(finite.mutable_data());
    const int64_t count = values.shape(0);
    const int64_t dim = values.shape(1);
    sparring::bindings::GilRelease release;
    kernels::finite_rows(process_executor(), from, count, dim, to);
    return finite;
  });
}

void check_indices(const py::array& indices, int64_t limit, const char* name) {
  const auto* from = input<int64_t>(indices, name, {kAny});
  const int64_t place = kernels::first_out_of_range(from, indices.shape(0), limit);
  if (place < 0) return;
  refuse(std::string(name) + " must lie in [0, " + std::to_string(limit) + "), found " +
         std::to_string(from[place]) + " at place " + std::to_string(place));
}

void check_offsets(const py::array& offsets, int64_t count, const char* name) {
  const int64_t num_bags = num_bags_of(offsets);
  const auto* from = input<int64_t>(offsets, name, {kAny});
  const int64_t place = kernels::first_bad_offset(from, num_bags, count);
  if (place < 0) return;
  refuse(std::string(name) + " must begin with 0, not decrease, and end with " +
         std::to_string(count) + ", the number of ids; found " + std::to_string(from[place]) +
         " at place " + std::to_string(place) +
         (place > 0 ? " after " + std::to_string(from[place - 1]) : ""));
}

}  // namespace

void bind_kernels(py::module_& module) {
  const py::object none = py::none();
  module.attr("NUM_PARTITIONS") = sparring::kNumPartitions;
  module.def("dedup", dedup, py::arg("ids"));
  module.def("partition", partition, py::arg("keys"));
  module.def("route", route, py::arg("keys"), py::arg("owners"), py::arg("world_size"));
  module.def("route_tables", route_tables, py::arg("keys"), py::arg("owners"),
             py::arg("world_size"));
  module.def("gather", gather, py::arg("rows"), py::arg("inverse"), py::arg("out") = none);
  module.def("pool", pool, py::arg("rows"), py::arg("inverse"), py::arg("offsets"),
             py::arg("mode") = "sum", py::arg("weights") = none, py::arg("out") = none);
  module.def("pool_backward", pool_backward, py::arg("gradient"), py::arg("inverse"),
             py::arg("offsets"), py::arg("num_rows"), py::arg("mode") = "sum",
             py::arg("weights") = none, py::arg("out") = none);
  module.def("pool_weight_gradient", pool_weight_gradient, py::arg("gradient"), py::arg("rows"),
             py::arg("inverse"), py::arg("offsets"), py::arg("mode") = "sum");
  module.def("segment_sum", segment_sum, py::arg("values"), py::arg("segments"),
             py::arg("num_segments"), py::arg("out") = none);

  py::class_<kernels::InitializerSpec>(module, "InitializerSpec")
      .def(py::init(&make_spec), py::arg("kind"), py::arg("parameters"), py::arg("dim"),
           py::arg("seed"), py::arg("table_hash"))
      .def_readonly("dim", &kernels::InitializerSpec::dim)
      .def_readonly("philox_key", &kernels::InitializerSpec::philox_key)
      .def_property_readonly("rounding_seed", [](const kernels::InitializerSpec& self) {
        return sparring::rounding_seed_for(self.philox_key);
      });
  module.def("table_hash", [](std::string_view name) { return sparring::fnv1a(name); },
             py::arg("name"));
  module.def("initialize", initialize, py::arg("rows"), py::arg("keys"), py::arg("found"),
             py::arg("spec"), py::arg("state") = none);

  module.def("decode", decode, py::arg("rows"));
  module.def("encode", encode, py::arg("embeddings"), py::arg("out"), py::arg("keys") = none,
             py::arg("seed") = 0, py::arg("step") = 0);

  module.def("decode_states", decode_states, py::arg("rows"), py::arg("dim"),
             py::arg("state_width"));
  module.def("encode_states", encode_states, py::arg("states"), py::arg("rows"), py::arg("dim"),
             py::arg("keys") = none, py::arg("seed") = 0, py::arg("step") = 0);

  module.def("is_finite", is_finite, py::arg("values"));
  module.def("are_finite", are_finite, py::arg("arrays"));
  module.def("finite_rows", finite_rows, py::arg("values"));
  module.def("check_indices", check_indices, py::arg("indices"), py::arg("limit"),
             py::arg("name"));
  module.def("check_offsets", check_offsets, py::arg("offsets"), py::arg("count"),
             py::arg("name"));

  module.def("simd_levels", kernels::available_simd_levels);
  module.def("simd_level", kernels::simd_level);
  module.def("set_simd_level", kernels::set_simd_level, py::arg("name"));
  // Any operation may throw it at first use, when the environment is read.
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const kernels::SimdLevelError& error) {
      sparring::bindings::set_refusal(error.what());
    }
  });
}
