// Ids of strings: Python strings, and Arrow arrays via Arrow's C data interface, without a copy
// (https://arrow.apache.org/docs/format/CDataInterface.html).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "execution/pool.h"
#include "kernels/hash_strings.h"
#include "sparring/hash_string.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

// The two structs of the interface, with the members that this file reads.
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t num_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t num_buffers;
  int64_t num_children;
  const void** buffers;
};

int64_t first_null(const ArrowArray& array) {
  const auto* valid = static_cast<const uint8_t*>(array.buffers[0]);
  if (valid == nullptr || array.null_count == 0) return -1;
  for (int64_t i = 0; i < array.length; ++i) {
    const int64_t at = array.offset + i;
    if ((valid[at / 8] >> (at % 8) & 1) == 0) return i;
  }
  return -1;
}

template <class Offset>
void hash_array(const ArrowArray& array, int64_t* ids) {
  if (array.length == 0) return;  // its buffers may be NULL
  const GilRelease release;
  kernels::hash_strings(execution::process_executor(), static_cast<const char*>(array.buffers[2]),
                        static_cast<const Offset*>(array.buffers[1]) + array.offset, array.length,
                        ids);
}

// The ids, and the position of the first null or -1. A null has the id of the bytes in its slot.
py::tuple hash_arrow(const py::capsule& schema_capsule, const py::capsule& array_capsule) {
  const auto& schema = *schema_capsule.get_pointer<ArrowSchema>();
  const auto& array = *array_capsule.get_pointer<ArrowArray>();
  const std::string format = schema.format;
  const bool is_small = format == "u" || format == "z";
  if (schema.dictionary != nullptr || (!is_small && format != "U" && format != "Z")) {
    refuse("strings must be an Arrow array of string, large_string, binary or large_binary; found "
           "the Arrow format '" + format + "'" +
           (schema.dictionary != nullptr ? " with a dictionary: decode it, or hash the dictionary"
                                         : ": cast it"));
  }
  py::array_t<int64_t> ids(array.length);
  is_small ? hash_array<int32_t>(array, ids.mutable_data())
           : hash_array<int64_t>(array, ids.mutable_data());
  return py::make_tuple(std::move(ids), first_null(array));
}

py::array hash_list(const py::list& strings) {
  py::array_t<int64_t> ids(static_cast<py::ssize_t>(strings.size()));
  int64_t* to = ids.mutable_data();
  for (size_t i = 0; i < strings.size(); ++i) {
    PyObject* each = PyList_GET_ITEM(strings.ptr(), static_cast<Py_ssize_t>(i));
    const char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyUnicode_Check(each)) {
      bytes = PyUnicode_AsUTF8AndSize(each, &size);
      if (bytes == nullptr) {
        PyErr_Clear();
        refuse("strings[" + std::to_string(i) + "] cannot be encoded as UTF-8, because it contains half of a "
               "surrogate pair");
      }
    } else if (PyBytes_Check(each)) {
      bytes = PyBytes_AS_STRING(each);
      size = PyBytes_GET_SIZE(each);
    } else {
      refuse("strings[" + std::to_string(i) + "] must be str or bytes, found " +
             Py_TYPE(each)->tp_name);
    }
    to[i] = hash_string(bytes, static_cast<size_t>(size));
  }
  return ids;
}

}  // namespace
}  // namespace sparring::bindings

void bind_strings(py::module_& module) {
  module.def("hash_arrow", sparring::bindings::hash_arrow, py::arg("schema"), py::arg("array"));
  module.def("hash_list", sparring::bindings::hash_list, py::arg("strings"));
}
