// Opens tables of a device as capsules of storage_abi.h.
#include "bindings/device_table.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings/device_arrays.h"
#include "device_table/device_storage.h"
#include "sparring/storage_border.h"

namespace py = pybind11;

namespace sparring::hkv {
namespace {

constexpr int32_t kGpu = 2;  // DLPack's code

// The capsule owns the struct: its destructor calls release.
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
    // The emulator's memory passes for a GPU's, as the CPU's arrays are staged for it too.
    const SparringDevice place{kGpu, handle.type() == kGpu ? handle.number() : 0};
    SparringStorage* storage = border::make_storage(
        std::make_shared<DeviceStorage>(handle.shared_device(), place, options),
        "sparring-hkv " SPARRING_HKV_VERSION);
    PyObject* capsule = PyCapsule_New(storage, SPARRING_STORAGE_CAPSULE, [](PyObject* self) {
      auto* owned =
          static_cast<SparringStorage*>(PyCapsule_GetPointer(self, SPARRING_STORAGE_CAPSULE));
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

}  // namespace

void bind_device_table(py::module_& module) {
  module.def("create_table", &create_table, py::arg("device"), py::kw_only(),
             py::arg("row_bytes"), py::arg("capacity"), py::arg("memory_bytes"),
             py::arg("policy"), py::arg("hash_seed"), py::arg("device_memory_bytes"),
             "Opens a table on the device and returns it as a capsule of storage_abi.h.");
}

}  // namespace sparring::hkv
