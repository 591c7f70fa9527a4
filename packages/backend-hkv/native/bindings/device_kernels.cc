// The key operations of a device, on arrays that the caller allocated.
// sparring_hkv/device_kernels.py allocates results and checks the remaining arguments.
#include "bindings/device_kernels.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/device_arrays.h"
#include "device_kernels/dedup.h"
#include "device_kernels/encode.h"
#include "device_kernels/finite.h"
#include "device_kernels/initialize.h"
#include "device_kernels/route.h"
#include "device_kernels/rows.h"
#include "device_kernels/sums.h"
#include "device_kernels/update.h"

namespace py = pybind11;
namespace kernels = sparring::device_kernels;

namespace sparring::hkv {
namespace {

using device::Buffer;
using device::Stream;
using NoGil = py::gil_scoped_release;

// Throws StreamRefused if the stream belongs to another device or is being captured.
Stream stream_of(const DeviceHandle& handle, uint64_t stream) {
  handle.device().check_stream(reinterpret_cast<Stream>(stream));
  return reinterpret_cast<Stream>(stream);
}

int64_t checked_count(int64_t count, const char* what) {
  if (count <= kernels::kMostIds) return count;
  refuse("at most " + std::to_string(kernels::kMostIds) + " " + what + " in one call, found " +
         std::to_string(count) + "; split the batch");
}

int64_t dedup(DeviceHandle& handle, uint64_t stream, const py::object& ids, const py::object& keys,
              const py::object& inverse) {
  const DeviceArray from(handle, ids, "ids");
  from.check_shape({kAny});
  const int64_t count = checked_count(from.length(), "ids");
  const DeviceArray to_keys(handle, keys, "keys");
  const DeviceArray to_inverse(handle, inverse, "inverse");
  to_keys.check_shape({count});
  to_inverse.check_shape({count});
  auto* const ids_data = from.as<int64_t>();
  auto* const keys_data = to_keys.as<int64_t>();
  auto* const inverse_data = to_inverse.as<int64_t>();
  const NoGil release;
  const Stream on = stream_of(handle, stream);
  const Buffer num_keys = device::make_buffer<int64_t>(handle.device(), 1, on);
  kernels::dedup(handle.device(), on,
                 {ids_data, count, keys_data, inverse_data, num_keys.as<int64_t>()});
  return handle.read_word(num_keys.as<void>(), on);
}

// Deduplicates the concatenated ids of several tables; see device_kernels/dedup.h. Returns the start
// of each table's keys, and the end of the last.
std::vector<int64_t> dedup_tables(DeviceHandle& handle, uint64_t stream, const py::object& ids,
                                  const std::vector<int64_t>& offsets, const py::object& keys,
                                  const py::object& inverse) {
  const DeviceArray from(handle, ids, "ids");
  from.check_shape({kAny});
  const int64_t count = checked_count(from.length(), "ids");
  const DeviceArray to_keys(handle, keys, "keys");
  const DeviceArray to_inverse(handle, inverse, "inverse");
  to_keys.check_shape({count});
  to_inverse.check_shape({count});
  if (offsets.size() < 2 || offsets.front() != 0 || offsets.back() != count ||
      !std::is_sorted(offsets.begin(), offsets.end()))
    refuse("offsets must ascend from 0 to the number of ids, " + std::to_string(count));
  auto* const ids_data = from.as<int64_t>();
  auto* const keys_data = to_keys.as<int64_t>();
  auto* const inverse_data = to_inverse.as<int64_t>();
  const NoGil release;
  const Stream on = stream_of(handle, stream);
  const size_t num_bytes = offsets.size() * sizeof(int64_t);
  const Buffer segments(handle.device(), num_bytes, on);
  const Buffer key_offsets(handle.device(), num_bytes, on);
  handle.device().write(segments.as<void>(), offsets.data(), num_bytes, on);
  kernels::dedup(handle.device(), on,
                 {ids_data, count, keys_data, inverse_data, nullptr, segments.as<int64_t>(),
                  static_cast<int64_t>(offsets.size()) - 1, key_offsets.as<int64_t>()});
  std::vector<int64_t> found(offsets.size());
  handle.read_back().read({{found.data(), key_offsets.as<void>(), num_bytes}}, on);
  return found;
}

void partition(DeviceHandle& handle, uint64_t stream, const py::object& keys,
               const py::object& partitions) {
  const DeviceArray from(handle, keys, "keys");
  from.check_shape({kAny});
  const DeviceArray to(handle, partitions, "partitions");
  to.check_shape({from.length()});
  const kernels::Partition arguments{from.as<int64_t>(), from.length(), to.as<uint16_t>()};
  const NoGil release;
  kernels::partition(handle.device(), stream_of(handle, stream), arguments);
}

void route(DeviceHandle& handle, uint64_t stream, const py::object& keys, const py::object& owners,
           const py::object& order, const py::object& offsets) {
  const DeviceArray from(handle, keys, "keys");
  const DeviceArray owner_of(handle, owners, "owners");
  const DeviceArray to_order(handle, order, "order");
  const DeviceArray to_offsets(handle, offsets, "offsets");
  from.check_shape({kAny});
  owner_of.check_shape({4096});
  to_order.check_shape({from.length()});
  to_offsets.check_shape({kAny});
  const kernels::Route arguments{from.as<int64_t>(),
                                 checked_count(from.length(), "keys"),
                                 owner_of.as<int32_t>(),
                                 static_cast<int32_t>(to_offsets.length() - 1),
                                 to_order.as<int64_t>(),
                                 to_offsets.as<int64_t>()};
  const NoGil release;
  kernels::route(handle.device(), stream_of(handle, stream), arguments);
}

void gather(DeviceHandle& handle, uint64_t stream, const py::object& rows,
            const py::object& inverse, const py::object& out) {
  const DeviceArray from(handle, rows, "rows");
  const DeviceArray places(handle, inverse, "inverse");
  const DeviceArray to(handle, out, "out");
  from.check_shape({kAny, kAny});
  places.check_shape({kAny});
  to.check_shape({places.length(), from.shape()[1]});
  if (from.row_type() != to.row_type()) refuse("out must have the dtype of rows");
  const kernels::Gather arguments{from.bytes(), places.as<int64_t>(), to.bytes(), places.length(),
                                  from.row_stride()};
  const NoGil release;
  kernels::gather(handle.device(), stream_of(handle, stream), arguments);
}

// Returns the weights (n), or NULL.
template <class T>
T* weights_of(const std::optional<DeviceArray>& weights, int64_t count) {
  if (!weights) return nullptr;
  weights->check_shape({count});
  return weights->as<T>();
}

std::optional<DeviceArray> optional_array(const DeviceHandle& handle, const py::object& object,
                                          const char* name) {
  if (object.is_none()) return std::nullopt;
  return DeviceArray(handle, object, name);
}

// Returns the number of bags for offsets (b + 1).
int64_t num_bags_of(const DeviceArray& offsets) {
  if (offsets.shape().size() != 1 || offsets.length() < 1)
    refuse("offsets must have one dimension, and one element more than there are bags");
  return offsets.length() - 1;
}

void pool(DeviceHandle& handle, uint64_t stream, const py::object& rows, const py::object& inverse,
          const py::object& offsets, const py::object& weights, const py::object& out,
          bool is_mean) {
  const DeviceArray from(handle, rows, "rows");
  const DeviceArray places(handle, inverse, "inverse");
  const DeviceArray bags(handle, offsets, "offsets");
  const auto scales = optional_array(handle, weights, "weights");
  const DeviceArray to(handle, out, "out");
  from.check_shape({kAny, kAny});
  places.check_shape({kAny});
  const int64_t num_bags = num_bags_of(bags);
  const int64_t dim = from.shape()[1];
  to.check_shape({num_bags, dim});
  with_float_dtype(from, "rows", [&]<class T>(T) {
    const kernels::Pool<T> arguments{from.as<T>(), places.as<int64_t>(), bags.as<int64_t>(),
                                     weights_of<T>(scales, places.length()), to.as<T>(), num_bags,
                                     dim, is_mean};
    const NoGil release;
    kernels::pool(handle.device(), stream_of(handle, stream), arguments);
  });
}

uint64_t* word_of(const DeviceArray& array) {
  return reinterpret_cast<uint64_t*>(array.as<int64_t>());
}

// `num_bad`: (1) int64, incremented for each sum that is not finite; None to skip the check.
void scatter(DeviceHandle& handle, uint64_t stream, const py::object& source,
             const py::object& targets, const py::object& offsets, const py::object& weights,
             const py::object& out, bool is_mean, const py::object& num_bad) {
  const DeviceArray from(handle, source, "values");
  const DeviceArray places(handle, targets, "segments");
  const auto bags = optional_array(handle, offsets, "offsets");
  const auto scales = optional_array(handle, weights, "weights");
  const DeviceArray to(handle, out, "out");
  const auto bad = optional_array(handle, num_bad, "num_bad");
  if (bad) bad->check_shape({1});
  from.check_shape({kAny, kAny});
  places.check_shape({kAny});
  const int64_t count = checked_count(places.length(), "values");
  const int64_t num_bags = bags ? num_bags_of(*bags) : count;
  if (from.length() != num_bags) {
    refuse("values must have one row for each of " + std::to_string(num_bags) +
           " bags, found " + std::to_string(from.length()));
  }
  const int64_t dim = from.shape()[1];
  to.check_shape({kAny, dim});
  const int64_t num_rows = checked_count(to.length(), "rows");
  with_float_dtype(from, "values", [&]<class T>(T) {
    const kernels::Scatter<T> arguments{from.as<T>(),
                                        places.as<int64_t>(),
                                        bags ? bags->as<int64_t>() : nullptr,
                                        weights_of<T>(scales, count),
                                        to.as<T>(),
                                        count,
                                        checked_count(num_bags, "bags"),
                                        num_rows,
                                        dim,
                                        is_mean,
                                        bad ? word_of(*bad) : nullptr};
    const NoGil release;
    kernels::scatter(handle.device(), stream_of(handle, stream), arguments);
  });
}

void pool_weight_gradient(DeviceHandle& handle, uint64_t stream, const py::object& gradient,
                          const py::object& rows, const py::object& inverse,
                          const py::object& offsets, const py::object& out, bool is_mean) {
  const DeviceArray from(handle, gradient, "gradient");
  const DeviceArray by_key(handle, rows, "rows");
  const DeviceArray places(handle, inverse, "inverse");
  const DeviceArray bags(handle, offsets, "offsets");
  const DeviceArray to(handle, out, "out");
  by_key.check_shape({kAny, kAny});
  places.check_shape({kAny});
  const int64_t num_bags = num_bags_of(bags);
  const int64_t dim = by_key.shape()[1];
  from.check_shape({num_bags, dim});
  to.check_shape({places.length()});
  with_float_dtype(by_key, "rows", [&]<class T>(T) {
    const kernels::PoolWeightGradient<T> arguments{
        from.as<T>(),      by_key.as<T>(), places.as<int64_t>(), bags.as<int64_t>(), to.as<T>(),
        places.length(), num_bags,       dim,                  is_mean};
    const NoGil release;
    kernels::pool_weight_gradient(handle.device(), stream_of(handle, stream), arguments);
  });
}

Initializer make_initializer(const std::string& kind, std::pair<double, double> parameters,
                                      uint64_t philox_key) {
  InitialKind known;
  if (!initial_kind_named(kind, &known)) {
    refuse("initializer kind '" + kind + "' is unknown to the native kernel");
  }
  return {known, parameters.first, parameters.second, philox_key};
}

// Checks 16-bit embeddings followed by state. If the state is misaligned, reading it puts the GPU
// into an unrecoverable error state. Row lengths are multiples of the alignment.
void check_state_alignment(const DeviceArray& rows, const kernels::RowLayout& layout) {
  const int64_t unit = kernels::computing_bytes(layout.type);
  const auto address = reinterpret_cast<uintptr_t>(rows.bytes());
  if (layout.state_width == 0 || address % static_cast<uintptr_t>(unit) == 0) return;
  refuse("rows with state must begin at a multiple of " + std::to_string(unit) +
         " bytes, found an address that is " + std::to_string(address % static_cast<uintptr_t>(unit)) +
         " bytes larger; copy them first");
}

void initialize(DeviceHandle& handle, uint64_t stream, const Initializer& initializer,
                int64_t dim, const py::object& rows, const py::object& keys,
                const py::object& found, const py::object& state) {
  const DeviceArray to(handle, rows, "rows");
  const DeviceArray from(handle, keys, "keys");
  const DeviceArray flags(handle, found, "found");
  const auto state_array = optional_array(handle, state, "state");
  from.check_shape({kAny});
  flags.check_shape({from.length()});
  to.check_shape({from.length(), kAny});
  const kernels::RowType type = to.row_type();
  const int64_t row_bytes = to.shape()[1] * to.element_bytes();
  const int64_t begin = kernels::make_row_layout(type, dim, 1).state_begin;
  const int64_t state_width =
      row_bytes <= begin ? 0 : (row_bytes - begin) / kernels::computing_bytes(type);
  kernels::Initialize arguments{};
  arguments.values = kernels::prepare(initializer, type);
  arguments.layout = kernels::make_row_layout(type, dim, state_width);
  if (arguments.layout.row_bytes != row_bytes) {
    refuse("rows of " + std::to_string(row_bytes) + " bytes cannot contain an embedding of " +
           std::to_string(dim) + " elements followed by state; pass the width of the table");
  }
  check_state_alignment(to, arguments.layout);
  if (state_array) {
    state_array->check_shape({state_width});
    arguments.state = kernels::computing_bytes(type) == 8
                          ? static_cast<const void*>(state_array->as<double>())
                          : static_cast<const void*>(state_array->as<float>());
  }
  arguments.keys = from.as<int64_t>();
  arguments.flags = flags.as<uint8_t>();
  arguments.count = from.length();
  arguments.rows = {nullptr, static_cast<char*>(to.bytes()), row_bytes};
  const NoGil release;
  kernels::initialize(handle.device(), stream_of(handle, stream), arguments);
}

kernels::HalfRows half_rows(const DeviceArray& rows) {
  rows.check_shape({kAny, kAny});
  const kernels::RowType type = rows.row_type();
  if (!kernels::is_half(type)) refuse("rows must be float16 or bfloat16");
  return {type, {nullptr, static_cast<char*>(rows.bytes()), rows.row_stride()}, rows.length(),
          rows.shape()[1]};
}

void decode(DeviceHandle& handle, uint64_t stream, const py::object& rows, const py::object& out) {
  const DeviceArray from(handle, rows, "rows", true);
  const DeviceArray to(handle, out, "out");
  const kernels::HalfRows halves = half_rows(from);
  to.check_shape({halves.count, halves.dim});
  auto* const data = to.as<float>();
  const NoGil release;
  kernels::decode(handle.device(), stream_of(handle, stream), halves, data);
}

void encode(DeviceHandle& handle, uint64_t stream, const py::object& values, const py::object& out,
            const py::object& keys, uint64_t seed, int64_t step) {
  const DeviceArray from(handle, values, "values");
  const DeviceArray to(handle, out, "out", true);
  const auto by_key = optional_array(handle, keys, "keys");
  const kernels::HalfRows halves = half_rows(to);
  from.check_shape({halves.count, halves.dim});
  if (by_key) by_key->check_shape({halves.count});
  auto* const data = from.as<float>();
  const kernels::Rounding rounding{by_key ? by_key->as<int64_t>() : nullptr, nullptr, seed, step};
  const NoGil release;
  kernels::encode(handle.device(), stream_of(handle, stream), data, rounding, halves);
}

bool is_finite(DeviceHandle& handle, uint64_t stream, const py::object& values) {
  const DeviceArray from(handle, values, "values");
  return with_float_dtype(from, "values", [&]<class T>(T) {
    auto* const data = from.as<T>();
    const NoGil release;
    const Stream on = stream_of(handle, stream);
    const Buffer num_bad = device::make_buffer<uint64_t>(handle.device(), 1, on);
    kernels::count_non_finite(handle.device(), on, data, from.num_elements(),
                              num_bad.as<uint64_t>());
    return handle.read_word(num_bad.as<void>(), on) == 0;
  });
}

void finite_rows(DeviceHandle& handle, uint64_t stream, const py::object& values,
                 const py::object& finite) {
  const DeviceArray from(handle, values, "values");
  const DeviceArray to(handle, finite, "finite");
  from.check_shape({kAny, kAny});
  to.check_shape({from.length()});
  with_float_dtype(from, "values", [&]<class T>(T) {
    const kernels::FiniteRows<T> arguments{from.as<T>(), from.length(), from.shape()[1],
                                           to.as<uint8_t>()};
    const NoGil release;
    kernels::finite_rows(handle.device(), stream_of(handle, stream), arguments);
  });
}

kernels::HyperParameters hyper_from(const py::dict& given) {
  kernels::HyperParameters hyper;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (!updates::set_hyper_parameter(&hyper, name, value.cast<double>()))
      refuse("unknown hyper-parameter '" + name + "'");
  }
  return hyper;
}

// Parameters that are the same for all rows of a step.
kernels::Update make_update(const std::string& method, const py::dict& hyper, int64_t step,
                            uint64_t rounding_seed) {
  kernels::Update update{};
  if (!updates::update_method_named(method, &update.method))
    refuse("update method '" + method + "' is unknown to the native kernels");
  if (step < 1) refuse("step must be at least 1, found " + std::to_string(step));
  update.hyper = hyper_from(hyper);
  update.step = step;
  update.rounding_seed = rounding_seed;
  return update;
}

void update(DeviceHandle& handle, uint64_t stream, const kernels::Update& step,
            const py::object& keys, const py::object& rows, const py::object& gradients) {
  const DeviceArray by_key(handle, keys, "keys");
  const DeviceArray to(handle, rows, "rows");
  const DeviceArray from(handle, gradients, "gradients");
  by_key.check_shape({kAny});
  from.check_shape({by_key.length(), kAny});
  to.check_shape({by_key.length(), kAny});
  kernels::Update arguments = step;
  const kernels::RowType type = to.row_type();
  const int64_t dim = from.shape()[1];
  const int64_t row_bytes = to.shape()[1] * to.element_bytes();
  arguments.layout =
      kernels::make_row_layout(type, dim, updates::state_width_of(step.method, dim));
  if (arguments.layout.row_bytes != row_bytes) {
    refuse("rows of " + std::to_string(arguments.layout.row_bytes) + " bytes are expected, found " +
           std::to_string(row_bytes));
  }
  check_state_alignment(to, arguments.layout);
  arguments.keys = by_key.as<int64_t>();
  arguments.rows = {nullptr, static_cast<char*>(to.bytes()), row_bytes};
  arguments.gradients = kernels::computing_bytes(type) == 8
                            ? static_cast<void*>(from.as<double>())
                            : static_cast<void*>(from.as<float>());
  arguments.count = by_key.length();
  const NoGil release;
  const Stream on = stream_of(handle, stream);
  const Buffer decoded = device::make_buffer<float>(
      handle.device(),
      static_cast<size_t>(kernels::num_decoded(type, arguments.count, dim)), on);
  arguments.decoded = decoded.as<float>();
  kernels::update(handle.device(), on, arguments);
}

}  // namespace

void bind_device_kernels(py::module_& module) {
  module.def("dedup", &dedup);
  module.def("dedup_tables", &dedup_tables);
  module.def("partition", &partition);
  module.def("route", &route);
  module.def("gather", &gather);
  module.def("pool", &pool);
  module.def("scatter", &scatter, py::arg("device"), py::arg("stream"), py::arg("source"),
             py::arg("targets"), py::arg("offsets"), py::arg("weights"), py::arg("out"),
             py::arg("is_mean"), py::arg("num_bad") = py::none());
  module.def("pool_weight_gradient", &pool_weight_gradient);
  py::class_<Initializer>(module, "Initializer", py::module_local())
      .def(py::init(&make_initializer), py::arg("kind"), py::arg("parameters"),
           py::arg("philox_key"));
  module.def("initialize", &initialize);
  module.def("decode", &decode);
  module.def("encode", &encode);
  module.def("is_finite", &is_finite);
  module.def("finite_rows", &finite_rows);
  py::class_<kernels::Update>(module, "UpdateStep", py::module_local())
      .def(py::init(&make_update), py::arg("method"), py::arg("hyper"), py::arg("step"),
           py::arg("rounding_seed"));
  module.def("update", &update);
}

}  // namespace sparring::hkv
