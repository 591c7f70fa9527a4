// Converts the status of a storage to the corresponding Python exception, for the bindings of
// core and of backends.
//
// REQUIRES pybind11, and C++20.
#ifndef SPARRING_PYTHON_ERRORS_H_
#define SPARRING_PYTHON_ERRORS_H_

#include <pybind11/pybind11.h>

#include <string>

#include "sparring/storage_border.h"

namespace sparring::border {

// Returns the class in sparring.errors; NULL for SPARRING_OUT_OF_MEMORY, which becomes MemoryError.
inline const char* error_class(SparringStatus status) {
  switch (status) {
    case SPARRING_INVALID_ARGUMENT: return "InvalidArgumentError";
    case SPARRING_UNSUPPORTED: return "UnsupportedError";
    case SPARRING_CLOSED: return "ClosedError";
    case SPARRING_CAPACITY: return "CapacityError";
    case SPARRING_OUT_OF_MEMORY: return nullptr;
    case SPARRING_IO: return "StorageIOError";
    case SPARRING_DEADLINE: return "DeadlineError";
    case SPARRING_CORRUPT: return "CorruptDataError";
    case SPARRING_DEVICE_FAILED: return "DeviceError";
    case SPARRING_DEVICE_LOST: return "DeviceLostError";
    case SPARRING_DEVICE_MEMORY: return "DeviceMemoryError";
    default: return "InternalError";
  }
}

// Sets the exception. REQUIRES: the GIL is held.
inline void set_python_error(SparringStatus status, const std::string& message) {
  namespace py = pybind11;
  const char* const name = error_class(status);
  if (name == nullptr) return PyErr_SetString(PyExc_MemoryError, message.c_str());
  const py::object type = py::module_::import("sparring.errors").attr(name);
  DeviceMemory memory{};
  if (status == SPARRING_DEVICE_MEMORY && read_device_memory(message, &memory)) {
    const py::object raised = type(message, py::arg("asked_bytes") = memory.asked_bytes,
                                   py::arg("free_bytes") = memory.free_bytes);
    return PyErr_SetObject(type.ptr(), raised.ptr());
  }
  PyErr_SetString(type.ptr(), message.c_str());
}

// Raises the error of a callback, unless the status is SPARRING_OK. REQUIRES: the GIL is held.
inline void raise_unless_ok(SparringStatus status, SparringCall& call) {
  if (status == SPARRING_OK) return;
  SparringError& error = call.error;
  const std::string message = error.message != nullptr ? error.message : "no message";
  if (error.release != nullptr) error.release(&error);
  set_python_error(status, message);
  throw pybind11::error_already_set();
}

}  // namespace sparring::border

#endif  // SPARRING_PYTHON_ERRORS_H_
