// Opens device tables as capsules of storage_abi.h.
#include "bindings/device_table.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings/device_arrays.h"
#include "bindings/device_callbacks.h"
#include "device_table/device_storage.h"
#include "sparring/python_errors.h"

namespace py = pybind11;

namespace sparring::hkv {
namespace {

constexpr int32_t kGpu = 2;  // DLPack's device type

// The capsule owns the struct. Its destructor calls release without the GIL.
py::capsule create_table(const DeviceHandle& handle, uint64_t row_bytes,
                         std::optional<int64_t> capacity, std::optional<uint64_t> memory_bytes,
                         const std::string& policy, uint64_t hash_seed,
                         std::optional<uint64_t> device_memory_bytes) {
  try {
    DeviceTableOptions options;
    options.table.row_bytes = row_bytes;
    options.table.capacity = capacity.value_or(-1);
    options.table.memory_bytes = memory_bytes.value_or(0);
    options.table.policy = Policy::kind_of(policy);
    options.table.hash_seed = hash_seed;
    options.device_memory_bytes = device_memory_bytes.value_or(0);
    // The emulator reports its memory as GPU memory, so CPU arrays are staged for it too.
    const SparringDevice place{kGpu, handle.type() == kGpu ? handle.number() : 0};
    SparringStorage* storage = nullptr;
    {
      // Allocating memory for many rows, or pinned memory, takes seconds.
      const py::gil_scoped_release release;
      storage = border::make_storage(
          std::make_shared<DeviceStorage>(handle.shared_device(), place, options),
          "sparring-hkv " SPARRING_HKV_VERSION);
    }
    PyObject* capsule = PyCapsule_New(storage, SPARRING_STORAGE_CAPSULE, [](PyObject* self) {
      auto* owned =
          static_cast<SparringStorage*>(PyCapsule_GetPointer(self, SPARRING_STORAGE_CAPSULE));
      // Release waits for the device and frees pinned memory.
      const py::gil_scoped_release release;
      owned->release(owned);
    });
    if (capsule == nullptr) {
      storage->release(storage);
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::capsule>(capsule);
  } catch (const border::StatusError& error) {
    refuse(error.what());
  }
}

// ---- calls with arrays on the device, through the same struct ----

SparringStorage* storage_of(const py::capsule& capsule) {
  auto* storage =
      static_cast<SparringStorage*>(PyCapsule_GetPointer(capsule.ptr(), SPARRING_STORAGE_CAPSULE));
  if (storage == nullptr) throw py::error_already_set();
  return storage;
}

template <class Arguments>
Arguments make_arguments(const DeviceHandle& handle, uint64_t stream) {
  Arguments arguments{};
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device = {kGpu, handle.type() == kGpu ? handle.number() : 0};
  arguments.call.stream = reinterpret_cast<void*>(stream);
  return arguments;
}

template <class Arguments>
void run(SparringStatus (*callback)(void*, Arguments*), void* self, Arguments& arguments) {
  SparringStatus status;
  {
    const py::gil_scoped_release release;
    status = callback(self, &arguments);
  }
  border::raise_unless_ok(status, arguments.call);
}

void find(const py::capsule& capsule, const DeviceHandle& handle, uint64_t stream,
          const py::object& keys, const py::object& rows, const py::object& found) {
  const DeviceArray by_key(handle, keys, "keys");
  const DeviceArray to(handle, rows, "rows", true);
  const DeviceArray flags(handle, found, "found");
  by_key.check_shape({kAny});
  to.check_shape({by_key.length(), kAny});
  flags.check_shape({by_key.length()});
  auto arguments = make_arguments<SparringFind>(handle, stream);
  arguments.count = by_key.length();
  arguments.keys = by_key.as<int64_t>();
  arguments.columns = {0, static_cast<uint64_t>(to.shape()[1] * to.element_bytes())};
  arguments.rows = to.bytes();
  arguments.row_stride = static_cast<uint64_t>(to.row_stride());
  arguments.found = flags.as<uint8_t>();
  run(storage_of(capsule)->find, storage_of(capsule)->self, arguments);
}

// Returns the number of evicted rows and, if `keeps_departed`, the rows; -1 if not counted.
py::tuple upsert(const py::capsule& capsule, DeviceHandle& handle, uint64_t stream,
                 const py::object& keys, const py::object& rows, int64_t row_bytes,
                 bool counts_departed, bool keeps_departed) {
  const DeviceArray by_key(handle, keys, "keys");
  const DeviceArray from(handle, rows, "rows", true);
  by_key.check_shape({kAny});
  from.check_shape({by_key.length(), kAny});
  // With a narrower array, the table would read beyond its rows.
  if (from.shape()[1] * from.element_bytes() != row_bytes) {
    refuse("rows must have " + std::to_string(row_bytes) + " bytes, found " +
           std::to_string(from.shape()[1] * from.element_bytes()));
  }
  auto arguments = make_arguments<SparringUpsert>(handle, stream);
  arguments.count = by_key.length();
  arguments.keys = by_key.as<int64_t>();
  arguments.rows = from.bytes();
  arguments.row_stride = static_cast<uint64_t>(from.row_stride());
  Departed departed(handle.read_back(), arguments.call.stream, row_bytes, keeps_departed);
  if (counts_departed || keeps_departed) arguments.evicted = departed.sink();
  run(storage_of(capsule)->upsert, storage_of(capsule)->self, arguments);
  const bool is_asked = counts_departed || keeps_departed;
  return py::make_tuple(is_asked ? departed.count() : -1, departed.arrays());
}

}  // namespace

void bind_device_table(py::module_& module) {
  module.def("table_find", &find, py::arg("table"), py::arg("device"), py::arg("stream"),
             py::arg("keys"), py::arg("rows"), py::arg("found"),
             "Finds rows into arrays of the device, on the stream.");
  module.def("table_upsert", &upsert, py::arg("table"), py::arg("device"), py::arg("stream"),
             py::arg("keys"), py::arg("rows"), py::arg("row_bytes"),
             py::arg("counts_departed") = false, py::arg("keeps_departed") = false,
             "Upserts rows from arrays of the device, on the stream.");
  module.def("create_table", &create_table, py::arg("device"), py::kw_only(),
             py::arg("row_bytes"), py::arg("capacity"), py::arg("memory_bytes"),
             py::arg("policy"), py::arg("hash_seed"), py::arg("device_memory_bytes"),
             "Opens a table on the device and returns it as a capsule of storage_abi.h.");
}

}  // namespace sparring::hkv
