// Kernels over the rows of a storage, where they lie: any storage of storage_abi.h that
// takes calls of this device, without another package's code in between.
//
//   pool_storage     visit  ── show:   row pointers ──► bags
//   update_storage   update ── change: row pointers ──► new rows made, all changed
#include "bindings/device_fused.h"

#include <pybind11/numpy.h>

#include <exception>
#include <optional>
#include <string>

#include "bindings/device_arrays.h"
#include "bindings/device_callbacks.h"
#include "device_kernels/initialize.h"
#include "device_kernels/rows.h"
#include "device_kernels/update.h"
#include "sparring/python_errors.h"

namespace py = pybind11;
namespace kernels = sparring::device_kernels;

namespace sparring::hkv {
namespace {

using device::Buffer;
using device::Stream;

SparringStorage* storage_of(const py::object& capsule) {
  auto* storage = static_cast<SparringStorage*>(
      PyCapsule_GetPointer(capsule.ptr(), SPARRING_STORAGE_CAPSULE));
  if (storage == nullptr) throw py::error_already_set();
  return storage;
}

template <class Arguments>
Arguments call_on(const DeviceHandle& handle, Stream stream) {
  Arguments arguments{};
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device = {kCuda, handle.number()};
  arguments.call.stream = stream;
  return arguments;
}

// Raises what a call of a storage reported. Holds the GIL.
void check_status(SparringStatus status, SparringCall& call, const Thrown& thrown) {
  // A table that was lost over it says more than what was thrown.
  if (thrown.error && status != SPARRING_DEVICE_LOST) {
    if (call.error.release != nullptr) call.error.release(&call.error);
    std::rethrow_exception(thrown.error);
  }
  border::raise_unless_ok(status, call);
}

struct Pooling {
  device::Device* device;
  Stream stream;
  kernels::ShownPool arguments;
  Thrown thrown;
};

void pool_storage(DeviceHandle& handle, uint64_t stream_address, const py::object& capsule,
                  const kernels::Initializer& initializer, const std::string& dtype,
                  const py::object& ids, const py::object& offsets, const py::object& weights,
                  const py::object& out, bool is_mean) {
  const DeviceArray from(handle, ids, "ids");
  const DeviceArray bags(handle, offsets, "offsets");
  const DeviceArray to(handle, out, "out");
  std::optional<DeviceArray> scales;
  if (!weights.is_none()) scales.emplace(handle, weights, "weights");
  from.check_shape({kAny});
  bags.check_shape({kAny});
  to.check_shape({bags.length() - 1, kAny});
  const kernels::RowType type = kernels::row_type_named(dtype);
  const bool is_double = kernels::computing_bytes(type) == 8;
  const auto computing = [&](const DeviceArray& array) {
    return is_double ? static_cast<void*>(array.as<double>()) : static_cast<void*>(array.as<float>());
  };
  if (scales) scales->check_shape({from.length()});
  const auto stream = reinterpret_cast<Stream>(stream_address);
  Pooling work{&handle.device(), stream, {}, {}};
  work.arguments = {nullptr,         from.as<int64_t>(), bags.as<int64_t>(),
                    scales ? computing(*scales) : nullptr, computing(to), bags.length() - 1,
                    to.shape()[1],   type, kernels::initial_values(initializer, type), is_mean};
  const int64_t count = from.length();
  if (capsule.is_none() || count == 0) {
    const py::gil_scoped_release release;
    handle.device().check_stream(stream);
    // No key has a row.
    const Buffer rows = device::make_buffer<void*>(handle.device(), static_cast<size_t>(count), stream);
    handle.device().fill(rows.as<void>(), 0, rows.num_bytes(), stream);
    work.arguments.rows = rows.as<const void*>();
    kernels::pool_shown(handle.device(), stream, work.arguments);
    return;
  }
  SparringStorage* storage = storage_of(capsule);
  auto call = call_on<SparringVisit>(handle, stream);
  call.count = count;
  call.keys = from.as<int64_t>();
  call.columns = {0, static_cast<uint64_t>(work.arguments.dim * kernels::element_bytes(type))};
  call.context = &work;
  call.show = [](void* context, int64_t, int64_t, const void* const* rows) {
    auto& pooling = *static_cast<Pooling*>(context);
    return pooling.thrown.guard([&] {
      pooling.arguments.rows = rows;
      kernels::pool_shown(*pooling.device, pooling.stream, pooling.arguments);
    });
  };
  SparringStatus status;
  {
    const py::gil_scoped_release release;
    status = storage->visit(storage->self, &call);
  }
  check_status(status, call.call, work.thrown);
}

struct Updating {
  DeviceHandle* handle;
  device::Device* device;
  Stream stream;
  kernels::Update update;
  kernels::Initialize initialize;
  SparringUpdate* call;
  Thrown thrown;
  Asking asking;
  DeviceHandle::Resident resident;
};

// The state of new rows, where kernels reach it: an array of the device as it is, one of the host
// as the copy that the device keeps.
struct InitialState {
  const void* data = nullptr;  // NULL: zeros
  DeviceHandle::Resident resident;
};
InitialState initial_state_of(DeviceHandle& handle, const py::object& state,
                             const kernels::RowLayout& layout) {
  if (state.is_none() || layout.state_width == 0) return {};
  const bool is_double = kernels::computing_bytes(layout.type) == 8;
  if (!py::isinstance<py::array>(state)) {
    const DeviceArray array(handle, state, "state");
    array.check_shape({layout.state_width});
    return {is_double ? static_cast<const void*>(array.as<double>()) : array.as<float>(), nullptr};
  }
  const auto array = py::reinterpret_borrow<py::array>(state);
  const py::dtype wanted = is_double ? py::dtype::of<double>() : py::dtype::of<float>();
  if (array.ndim() != 1 || array.shape(0) != layout.state_width || !array.dtype().is(wanted)) {
    refuse("state must be an array of " + std::to_string(layout.state_width) + " " +
           std::string(py::str(wanted)) + ", found " + std::string(py::str(array.dtype())) +
           " of shape " + std::string(py::str(array.attr("shape"))));
  }
  const auto dense = py::array::ensure(array, py::array::c_style);
  const void* const bytes = dense.data();
  const auto num_bytes = static_cast<size_t>(dense.nbytes());
  const py::gil_scoped_release release;
  DeviceHandle::Resident resident = handle.resident(bytes, num_bytes);
  const void* const data = resident->as<void>();
  return {data, std::move(resident)};
}

// Returns how many rows are new, and what left.
py::tuple update_storage(DeviceHandle& handle, uint64_t stream_address, const py::object& capsule,
                       const kernels::Update& step, const kernels::Initializer& initializer,
                       const std::string& dtype, const py::object& keys,
                       const py::object& gradients, const py::object& state,
                       const py::object& admit, bool keeps_departed) {
  const DeviceArray by_key(handle, keys, "keys");
  const DeviceArray from(handle, gradients, "gradients");
  by_key.check_shape({kAny});
  from.check_shape({by_key.length(), kAny});
  const kernels::RowType type = kernels::row_type_named(dtype);
  const bool is_double = kernels::computing_bytes(type) == 8;
  const auto computing = [&](const DeviceArray& array) {
    return is_double ? static_cast<void*>(array.as<double>()) : static_cast<void*>(array.as<float>());
  };
  const int64_t dim = from.shape()[1];
  const auto layout =
      kernels::make_row_layout(type, dim, updates::state_width_of(step.method, dim));
  const auto stream = reinterpret_cast<Stream>(stream_address);
  Updating work{&handle, &handle.device(), stream, step, {}, nullptr, {}, {}, nullptr};
  work.asking = {&handle.device(), stream, by_key.as<int64_t>(), admit};
  work.update.layout = layout;
  work.update.keys = by_key.as<int64_t>();
  work.update.gradients = computing(from);
  work.initialize.values = kernels::initial_values(initializer, type);
  work.initialize.layout = layout;
  work.initialize.keys = by_key.as<int64_t>();
  work.initialize.writes_flagged = true;
  const InitialState initial = initial_state_of(handle, state, layout);
  work.initialize.state = initial.data;
  work.resident = initial.resident;

  SparringStorage* storage = storage_of(capsule);
  Departed departed(handle.departing(), stream, layout.row_bytes, keeps_departed);
  auto call = call_on<SparringUpdate>(handle, stream);
  work.call = &call;
  call.evicted = departed.sink();
  if (!admit.is_none()) {
    call.admit = [](void* context, int64_t count, const int64_t* positions, uint8_t* is_admitted) {
      auto& updating = *static_cast<Updating*>(context);
      return updating.thrown.guard([&] { updating.asking.ask(count, positions, is_admitted); });
    };
  }
  call.count = by_key.length();
  call.keys = by_key.as<int64_t>();
  call.context = &work;
  call.change = [](void* context, int64_t count, const int64_t* positions, void* const* rows,
                   const uint8_t* is_new) {
    auto& updating = *static_cast<Updating*>(context);
    const int32_t refused = updating.thrown.guard([&] {
      updating.initialize.positions = updating.update.positions = positions;
      updating.initialize.flags = is_new;
      updating.initialize.count = updating.update.count = count;
      updating.initialize.rows = updating.update.rows = {rows, nullptr, 0};
      // Rows are seldom new.
      if (updating.call->inserted != 0) {
        kernels::initialize(*updating.device, updating.stream, updating.initialize);
        if (updating.resident) updating.handle->keep_until(updating.stream);
      }
      kernels::update(*updating.device, updating.stream, updating.update);
    });
    if (refused != 0) updating.call->call.error = {"its rows could not be changed", nullptr, nullptr};
  };
  SparringStatus status;
  {
    const py::gil_scoped_release release;
    // Before any row changes: afterwards nothing may fail.
    const Buffer decoded = device::make_buffer<float>(
        handle.device(), static_cast<size_t>(kernels::num_decoded(type, call.count, dim)), stream);
    work.update.decoded = decoded.as<float>();
    status = storage->update(storage->self, &call);
  }
  check_status(status, call.call, work.thrown);
  return py::make_tuple(call.inserted, departed.count(), departed.arrays());
}

}  // namespace

void bind_device_fused(py::module_& module) {
  module.def("pool_storage", &pool_storage);
  module.def("update_storage", &update_storage);
}

}  // namespace sparring::hkv
