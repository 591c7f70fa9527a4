// sparring_hkv._native opens tables as capsules of storage_abi.h. All other operations use that
// struct, not Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "kernels.h"
#include "sparring/storage_border.h"
#include "storage.h"
#include "table.h"

namespace py = pybind11;
using namespace sparring::hkv;

namespace {

[[noreturn]] void raise(const sparring::border::StatusError& error) {
  const py::module_ errors = py::module_::import("sparring.errors");
  PyErr_SetString(errors.attr("InvalidArgumentError").ptr(), error.what());
  throw py::error_already_set();
}

// The capsule owns the struct. Its destructor calls release.
py::capsule create(uint64_t row_bytes, std::optional<int64_t> capacity,
                   std::optional<uint64_t> memory_bytes, const std::string& policy,
                   uint64_t hash_seed) {
  try {
    TableOptions options;
    options.row_bytes = row_bytes;
    options.capacity = capacity.value_or(-1);
    options.memory_bytes = memory_bytes.value_or(0);
    options.policy = Policy::kind_of(policy);
    options.hash_seed = hash_seed;
    SparringStorage* storage =
        make_storage(std::make_unique<Table>(options), "sparring-hkv " SPARRING_HKV_VERSION);
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
  } catch (const sparring::border::StatusError& error) {
    raise(error);
  }
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "The hash table of sparring-hkv, in C++.";
  module.attr("__version__") = SPARRING_HKV_VERSION;
  module.def("create", &create, py::kw_only(), py::arg("row_bytes"), py::arg("capacity"),
             py::arg("memory_bytes"), py::arg("policy"), py::arg("hash_seed"),
             "Opens a table and returns it as a capsule of storage_abi.h.");
  module.def(
      "kernels",
      [] {
        py::list names;
        for (const Kernels* kernels : available_kernels()) names.append(kernels->name);
        return names;
      },
      "The SIMD kernels that this processor can run, the one in use first.");
}
