#include "bindings/reclaimers.h"

#include <utility>

namespace py = pybind11;

namespace sparring::hkv {
namespace {

// While the interpreter shuts down, a thread that acquires the GIL is terminated.
bool is_over() {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing() != 0;
#else
  return !Py_IsInitialized() || _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

Reclaimers::~Reclaimers() {
  if (!Py_IsInitialized()) {
    // The interpreter has already freed them.
    for (py::object& function : functions_) function.release();
    return;
  }
  const py::gil_scoped_acquire hold;
  functions_.clear();
}

void Reclaimers::add(py::object function) {
  for (const py::object& known : functions_) {
    if (known.equal(function)) return;
  }
  functions_.push_back(std::move(function));
}

bool Reclaimers::call() {
  if (is_over()) return false;
  const py::gil_scoped_acquire hold;
  bool has_given = false;
  const std::vector<py::object> functions = functions_;  // a copy, because a call may call add()
  for (const py::object& function : functions) {
    try {
      has_given = py::bool_(function()) || has_given;
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("giving back unused memory of a device");
    }
  }
  return has_given;
}

}  // namespace sparring::hkv
