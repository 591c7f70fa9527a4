#include "bindings/arrays.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

// NPY_ARRAY_ALIGNED of NumPy's C interface, which pybind11 does not define.
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

void check_contiguous(const py::array& array, const char* name) {
  if ((array.flags() & py::array::c_style) == 0 || (array.flags() & kAligned) == 0) {
    refuse(std::string(name) +
           " must be C-contiguous and aligned; pass numpy.require(it, None, ['C', 'A'])");
  }
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
  check_contiguous(array, name);
  if (is_written && !array.writeable()) {
    refuse(std::string(name) + " is written to, but the array is read-only; pass a copy");
  }
}

kernels::RowType row_type_of(const py::array& array, const char* name) {
  const py::dtype dtype = array.dtype();
  const char order = dtype.byteorder();
  if (order == '=' || order == '|') {
    if (has_dtype<float>(array)) return kernels::RowType::float32;
    if (has_dtype<double>(array)) return kernels::RowType::float64;
    if (dtype.itemsize() == 1 && dtype.kind() == 'i') return kernels::RowType::int8;
    if (dtype.itemsize() == 2) {
      if (dtype.kind() == 'f') return kernels::RowType::float16;
      // A dtype of the package ml_dtypes, which is identified only by its name.
      if (dtype.attr("name").cast<std::string>() == "bfloat16") return kernels::RowType::bfloat16;
    }
  }
  refuse_dtype(array, name, "float32, float64, float16, bfloat16 or int8");
}

}  // namespace sparring::bindings
