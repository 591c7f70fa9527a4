#include "bindings/arrays.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

// NPY_ARRAY_ALIGNED of NumPy's C interface, which pybind11 does not name.
constexpr int kAligned = 0x0100;

std::string shape_text(const py::array& array) {
  return py::str(array.attr("shape")).cast<std::string>();
}

}  // namespace

void set_refusal(const char* message) {
  const py::object error = py::module_::import("sparring.errors").attr("InvalidArgumentError");
  PyErr_SetString(error.ptr(), message);
}

void refuse(const std::string& message) {
  set_refusal(message.c_str());
  throw py::error_already_set();
}

void refuse_dtype(const py::array& array, const char* name, const char* expected) {
  refuse(std::string(name) + " must be " + expected + ", found dtype " +
         py::str(array.dtype()).cast<std::string>() + "; convert it first");
}

void check_layout(const py::array& array, const char* name,
                  std::initializer_list<py::ssize_t> expected, bool is_written) {
  bool is_right = array.ndim() == static_cast<py::ssize_t>(expected.size());
  py::ssize_t axis = 0;
  for (const py::ssize_t length : expected) {
    if (!is_right) break;
    is_right = length == kAny || array.shape(axis) == length;
    ++axis;
  }
  if (!is_right) {
    std::string wanted;
    for (const py::ssize_t length : expected) {
      if (!wanted.empty()) wanted += ", ";
      wanted += length == kAny ? std::string("any") : std::to_string(length);
    }
    if (expected.size() == 1) wanted += ",";
    refuse(std::string(name) + " must have shape (" + wanted + "), found " + shape_text(array));
  }
  if ((array.flags() & py::array::c_style) == 0 || (array.flags() & kAligned) == 0) {
    refuse(std::string(name) +
           " must be C-contiguous and aligned; pass numpy.ascontiguousarray of it");
  }
  if (is_written && !array.writeable()) {
    refuse(std::string(name) + " is written to, but the array is read-only; pass a copy");
  }
}

}  // namespace sparring::bindings
