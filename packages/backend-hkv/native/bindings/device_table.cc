// Opens device tables as capsules of storage_abi.h.
#include "bindings/device_table.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "bindings/device_arrays.h"
#include "device_storage.h"
#include "sparring/storage_border.h"

namespace py = pybind11;

namespace sparring::hkv {
namespace {

// DLPack's code for CUDA; the emulator's calls say so too.
constexpr int32_t kCuda = 2;

DeviceTableOptions options_from(uint64_t row_bytes, std::optional<int64_t> capacity,
                                std::optional<uint64_t> memory_bytes,
                                std::optional<uint64_t> device_memory_bytes,
                                const std::string& policy, uint64_t hash_seed) {
  DeviceTableOptions options;
  options.table.row_bytes = row_bytes;
  options.table.capacity = capacity.value_or(-1);
  options.table.memory_bytes = memory_bytes.value_or(0);
  options.table.policy = Policy::kind_of(policy);
  options.table.hash_seed = hash_seed;
  options.device_memory_bytes = device_memory_bytes.value_or(0);
  return options;
}

py::capsule capsule_of(SparringStorage* storage) {
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
}

}  // namespace

void bind_device_table(py::module_& module,
                       std::function<std::unique_ptr<device::Device>(int)> open) {
  module.def(
      "create",
      [open = std::move(open)](int index, uint64_t row_bytes, std::optional<int64_t> capacity,
                               std::optional<uint64_t> memory_bytes,
                               std::optional<uint64_t> device_memory_bytes,
                               const std::string& policy, uint64_t hash_seed) {
        try {
          const DeviceTableOptions options = options_from(
              row_bytes, capacity, memory_bytes, device_memory_bytes, policy, hash_seed);
          auto storage =
              std::make_shared<DeviceStorage>(open(index), SparringDevice{kCuda, index}, options);
          return capsule_of(border::make_storage<DeviceStorage>(
              std::move(storage), "sparring-hkv " SPARRING_HKV_VERSION));
        } catch (const border::StatusError& error) {
          refuse(error.what());
        }
      },
      py::kw_only(), py::arg("index"), py::arg("row_bytes"), py::arg("capacity"),
      py::arg("memory_bytes"), py::arg("device_memory_bytes"), py::arg("policy"),
      py::arg("hash_seed"), "Opens a table on a device and returns it as a capsule.");
}

}  // namespace sparring::hkv
