// Kernels that read and write the rows of a storage in place. They support any storage of
// storage_abi.h with calls on this device, and call it directly.
//
//   pool_storage     visit  ── show:   row pointers ──► bags
//   update_storage   update ── change: row pointers ──► new rows initialized, all rows updated
//
// pool_storages and update_storages process several tables of this package with one set of launches.
#include "bindings/device_fused.h"

#include <pybind11/numpy.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/device_arrays.h"
#include "bindings/device_callbacks.h"
#include "device_kernels/initialize.h"
#include "device_kernels/rows.h"
#include "device_kernels/update.h"
#include "device_table/device_storage.h"
#include "device_table/device_tables.h"
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

// Returns the elements of an array of the type in which rows are computed.
void* computing(const DeviceArray& array, kernels::RowType type) {
  return kernels::computing_bytes(type) == 8 ? static_cast<void*>(array.as<double>())
                                             : static_cast<void*>(array.as<float>());
}

// Raises an error that a storage reported. Requires the GIL.
void check_status(SparringStatus status, SparringCall& call, const Thrown& thrown) {
  // If the device was lost, that error is more important than the exception of the callback.
  if (thrown.error && status != SPARRING_DEVICE_LOST) {
    if (call.error.release != nullptr) call.error.release(&call.error);
    std::rethrow_exception(thrown.error);
  }
  border::raise_unless_ok(status, call);
}

// One table's part of a lookup: its arrays and the call of its storage.
class Pooling {
 public:
  Pooling(DeviceHandle& handle, Stream stream, const py::object& capsule,
          const Initializer& initializer, const std::string& dtype, const py::object& ids,
          const py::object& offsets, const py::object& weights, const py::object& out, bool is_mean)
      : device_(handle.device()),
        stream_(stream),
        ids_(handle, ids, "ids"),
        bags_(handle, offsets, "offsets"),
        out_(handle, out, "out") {
    if (!weights.is_none()) weights_.emplace(handle, weights, "weights");
    ids_.check_shape({kAny});
    bags_.check_shape({kAny});
    out_.check_shape({bags_.length() - 1, kAny});
    const kernels::RowType type = kernels::row_type_named(dtype);
    if (weights_) weights_->check_shape({ids_.length()});
    arguments_ = {nullptr,
                  ids_.as<int64_t>(),
                  bags_.as<int64_t>(),
                  weights_ ? computing(*weights_, type) : nullptr,
                  computing(out_, type),
                  bags_.length() - 1,
                  out_.shape()[1],
                  type,
                  kernels::prepare(initializer, type),
                  is_mean};
    if (!capsule.is_none() && ids_.length() > 0) storage_ = storage_of(capsule);
    call_ = call_on<SparringVisit>(handle, stream);
    call_.count = ids_.length();
    call_.keys = ids_.as<int64_t>();
    call_.columns = {0, static_cast<uint64_t>(arguments_.dim * kernels::element_bytes(type))};
    call_.context = this;
    call_.show = [](void* context, int64_t, int64_t, const void* const* rows) {
      auto& self = *static_cast<Pooling*>(context);
      return self.thrown_.guard([&] { self.pool(rows); });
    };
  }
  Pooling(const Pooling&) = delete;
  Pooling& operator=(const Pooling&) = delete;

  // NULL if no key has a row.
  SparringStorage* storage() const { return storage_; }
  SparringVisit& call() { return call_; }
  const Thrown& thrown() const { return thrown_; }

  // This and the following methods do not require the GIL.
  void pool_nothing() {
    const Buffer rows = device::make_buffer<void*>(device_, static_cast<size_t>(call_.count), stream_);
    device_.fill(rows.as<void>(), 0, rows.num_bytes(), stream_);
    pool(rows.as<const void*>());
  }

 private:
  void pool(const void* const* rows) {
    arguments_.rows = rows;
    kernels::pool_shown(device_, stream_, arguments_);
  }

  device::Device& device_;
  Stream stream_;
  DeviceArray ids_;
  DeviceArray bags_;
  DeviceArray out_;
  std::optional<DeviceArray> weights_;
  kernels::ShownPool arguments_{};
  SparringStorage* storage_ = nullptr;
  SparringVisit call_{};
  Thrown thrown_;
};

void pool_storage(DeviceHandle& handle, uint64_t stream_address, const py::object& capsule,
                  const Initializer& initializer, const std::string& dtype,
                  const py::object& ids, const py::object& offsets, const py::object& weights,
                  const py::object& out, bool is_mean) {
  const auto stream = reinterpret_cast<Stream>(stream_address);
  Pooling work(handle, stream, capsule, initializer, dtype, ids, offsets, weights, out, is_mean);
  SparringStatus status = SPARRING_OK;
  {
    const py::gil_scoped_release release;
    if (work.storage() == nullptr) {
      handle.device().check_stream(stream);
      return work.pool_nothing();
    }
    status = work.storage()->visit(work.storage()->self, &work.call());
  }
  check_status(status, work.call().call, work.thrown());
}

// Returns the table of a storage that this module created.
DeviceTable& table_of(SparringStorage* storage) {
  if (storage->find != border::Callbacks<DeviceStorage>::find)
    refuse("all tables of one call must be tables of sparring-hkv on one device");
  return static_cast<DeviceStorage*>(storage->self)->table();
}

// Calls body(). Raises its exception or, preferably, the exception of a callback. Requires the GIL.
template <class Body>
void run_together(const Body& body, const std::function<const Thrown*()>& thrown) {
  std::optional<border::StatusError> failure;
  {
    const py::gil_scoped_release release;
    try {
      body();
    } catch (const border::StatusError& error) {
      failure = error;
    }
  }
  if (!failure) return;
  const Thrown* const found = thrown();
  if (found != nullptr && failure->status() != SPARRING_DEVICE_LOST)
    std::rethrow_exception(found->error);
  border::set_python_error(failure->status(), failure->what());
  throw py::error_already_set();
}

template <class Works>
const Thrown* first_thrown(const Works& works) {
  for (const auto& work : works) {
    if (work->thrown().error) return &work->thrown();
  }
  return nullptr;
}

// Like pool_storage for each tuple of its arguments from `capsule` on, in one set of launches.
void pool_storages(DeviceHandle& handle, uint64_t stream_address, const py::list& lookups) {
  const auto stream = reinterpret_cast<Stream>(stream_address);
  std::vector<std::unique_ptr<Pooling>> works;
  std::vector<TableVisit> visits;
  for (const py::handle each : lookups) {
    const auto given = py::reinterpret_borrow<py::tuple>(each);
    works.push_back(std::make_unique<Pooling>(
        handle, stream, given[0], given[1].cast<const Initializer&>(),
        given[2].cast<std::string>(), given[3], given[4], given[5], given[6],
        given[7].cast<bool>()));
    Pooling& work = *works.back();
    if (work.storage() != nullptr) visits.push_back({&table_of(work.storage()), &work.call()});
  }
  run_together(
      [&] {
        handle.device().check_stream(stream);
        visit_all(visits);
        for (const auto& work : works) {
          if (work->storage() == nullptr) work->pool_nothing();
        }
      },
      [&] { return first_thrown(works); });
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

// The initial state of new rows, accessible to kernels: a device array in place, or the device's
// copy of a host array.
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

// One table's part of a step: its arrays and the call of its storage.
class Update {
 public:
  Update(DeviceHandle& handle, Stream stream, const py::object& capsule, const kernels::Update& step,
         const Initializer& initializer, const std::string& dtype, const py::object& keys,
         const py::object& gradients, const py::object& state, const py::object& admit,
         bool keeps_departed)
      : keys_(handle, keys, "keys"),
        gradients_(handle, gradients, "gradients"),
        storage_(storage_of(capsule)),
        work_{&handle, &handle.device(), stream, step, {}, nullptr, {}, {}, nullptr} {
    keys_.check_shape({kAny});
    gradients_.check_shape({keys_.length(), kAny});
    const kernels::RowType type = kernels::row_type_named(dtype);
    const int64_t dim = gradients_.shape()[1];
    const auto layout =
        kernels::make_row_layout(type, dim, updates::state_width_of(step.method, dim));
    work_.asking = {&handle.device(), stream, keys_.as<int64_t>(), admit};
    work_.update.layout = layout;
    work_.update.keys = keys_.as<int64_t>();
    work_.update.gradients = computing(gradients_, type);
    work_.initialize.values = kernels::prepare(initializer, type);
    work_.initialize.layout = layout;
    work_.initialize.keys = keys_.as<int64_t>();
    work_.initialize.writes_flagged = true;
    InitialState initial = initial_state_of(handle, state, layout);
    work_.initialize.state = initial.data;
    work_.resident = std::move(initial.resident);
    departed_.emplace(handle.read_back(), stream, layout.row_bytes, keeps_departed);
    call_ = call_on<SparringUpdate>(handle, stream);
    work_.call = &call_;
    call_.evicted = departed_->sink();
    if (!admit.is_none()) {
      call_.admit = [](void* context, int64_t count, const int64_t* positions,
                       uint8_t* is_admitted) {
        auto& updating = *static_cast<Updating*>(context);
        return updating.thrown.guard([&] { updating.asking.ask(count, positions, is_admitted); });
      };
    }
    call_.count = keys_.length();
    call_.keys = keys_.as<int64_t>();
    call_.context = &work_;
    call_.change = change;
  }
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  SparringStorage* storage() const { return storage_; }
  SparringUpdate& call() { return call_; }
  const Thrown& thrown() const { return work_.thrown; }

  // Allocates memory before any row changes, so that later steps cannot fail. The GIL is not held.
  void take_memory() {
    const kernels::RowLayout& layout = work_.update.layout;
    decoded_ = device::make_buffer<float>(
        *work_.device,
        static_cast<size_t>(kernels::num_decoded(layout.type, call_.count, layout.dim)),
        work_.stream);
    work_.update.decoded = decoded_.as<float>();
  }

  // Returns the number of new rows, and the evicted rows.
  py::tuple result() {
    return py::make_tuple(call_.inserted, departed_->count(), departed_->arrays());
  }

 private:
  static void change(void* context, int64_t count, const int64_t* positions, void* const* rows,
                     const uint8_t* is_new) {
    auto& updating = *static_cast<Updating*>(context);
    const int32_t refused = updating.thrown.guard([&] {
      updating.initialize.positions = updating.update.positions = positions;
      updating.initialize.flags = is_new;
      updating.initialize.count = updating.update.count = count;
      updating.initialize.rows = updating.update.rows = {rows, nullptr, 0};
      // Most updates insert no rows.
      if (updating.call->inserted != 0) {
        kernels::initialize(*updating.device, updating.stream, updating.initialize);
        if (updating.resident) updating.handle->keep_until(updating.stream);
      }
      kernels::update(*updating.device, updating.stream, updating.update);
    });
    if (refused != 0) updating.call->call.error = {"the rows could not be changed", nullptr, nullptr};
  }

  DeviceArray keys_;
  DeviceArray gradients_;
  SparringStorage* storage_;
  Updating work_;
  std::optional<Departed> departed_;
  SparringUpdate call_{};
  Buffer decoded_;
};

// Returns the number of new rows, and the evicted rows.
py::tuple update_storage(DeviceHandle& handle, uint64_t stream_address, const py::object& capsule,
                         const kernels::Update& step, const Initializer& initializer,
                         const std::string& dtype, const py::object& keys,
                         const py::object& gradients, const py::object& state,
                         const py::object& admit, bool keeps_departed) {
  Update work(handle, reinterpret_cast<Stream>(stream_address), capsule, step, initializer, dtype,
              keys, gradients, state, admit, keeps_departed);
  SparringStatus status;
  {
    const py::gil_scoped_release release;
    work.take_memory();
    status = work.storage()->update(work.storage()->self, &work.call());
  }
  check_status(status, work.call().call, work.thrown());
  return work.result();
}

// Like update_storage for each tuple of its arguments from `capsule` on, in one set of launches with
// one wait. `num_bad`: (1) int64, device; if it is not 0, nothing changes and false is returned.
// `results` gets the results of the storages that changed, even if an exception is thrown.
bool update_storages(DeviceHandle& handle, uint64_t stream_address, const py::list& updates,
                     const py::object& num_bad, py::list results) {
  const auto stream = reinterpret_cast<Stream>(stream_address);
  std::vector<std::unique_ptr<Update>> works;
  std::vector<TableUpdate> calls;
  for (const py::handle each : updates) {
    const auto given = py::reinterpret_borrow<py::tuple>(each);
    works.push_back(std::make_unique<Update>(
        handle, stream, given[0], given[1].cast<const kernels::Update&>(),
        given[2].cast<const Initializer&>(), given[3].cast<std::string>(), given[4],
        given[5], given[6], given[7], given[8].cast<bool>()));
    calls.push_back({&table_of(works.back()->storage()), &works.back()->call()});
  }
  std::optional<DeviceArray> bad;
  const uint64_t* refused = nullptr;
  if (!num_bad.is_none()) {
    bad.emplace(handle, num_bad, "num_bad");
    bad->check_shape({1});
    refused = reinterpret_cast<const uint64_t*>(bad->as<int64_t>());
  }
  bool is_done = false;
  size_t num_done = 0;
  const auto add_results = [&] {
    for (size_t i = 0; i < num_done; ++i) results.append(works[i]->result());
  };
  try {
    run_together(
        [&] {
          for (const auto& work : works) work->take_memory();
          is_done = update_all(handle.read_back(), calls, refused, &num_done);
        },
        [&] { return first_thrown(works); });
  } catch (...) {
    add_results();
    throw;
  }
  add_results();
  return is_done;
}

}  // namespace

void bind_device_fused(py::module_& module) {
  module.def("pool_storage", &pool_storage);
  module.def("pool_storages", &pool_storages);
  module.def("update_storage", &update_storage);
  module.def("update_storages", &update_storages);
}

}  // namespace sparring::hkv
