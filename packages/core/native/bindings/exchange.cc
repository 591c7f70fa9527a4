// sparring._native's part of the exchange; see sparring/exchange/messages.py. Indices are not
// checked, like the arguments of the key operations.
#include <pybind11/pybind11.h>

#include <string_view>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "exchange/place.h"
#include "exchange/wire.h"
#include "execution/pool.h"

namespace py = pybind11;
namespace exchange = sparring::exchange;
using sparring::bindings::GilRelease;
using sparring::bindings::input;
using sparring::bindings::kAny;
using sparring::bindings::output;
using sparring::bindings::refuse;
using sparring::execution::process_executor;

namespace {

exchange::WireType wire_type(std::string_view name) {
  if (name == "bfloat16") return exchange::WireType::bfloat16;
  if (name == "float16") return exchange::WireType::float16;
  if (name == "int8") return exchange::WireType::int8;
  refuse("a wire dtype must be bfloat16, float16 or int8, found '" + std::string(name) + "'");
}

// Checks that the array has this number of contiguous bytes, aligned for float32, of any dtype.
void check_bytes(const py::array& array, const char* name, int64_t expected) {
  const bool is_contiguous = (array.flags() & py::array::c_style) != 0;
  if (!is_contiguous || array.nbytes() != expected ||
      (expected != 0 && reinterpret_cast<uintptr_t>(array.data()) % 4 != 0)) {
    refuse(std::string(name) + " must be " + std::to_string(expected) +
           " contiguous bytes, aligned to 4, found " + std::to_string(array.nbytes()));
  }
}

void wire_encode(std::string_view dtype, const py::array& rows, py::array& wire) {
  const exchange::WireType type = wire_type(dtype);
  const auto* from = input<float>(rows, "rows", {kAny, kAny});
  const int64_t count = rows.shape(0);
  const int64_t dim = rows.shape(1);
  check_bytes(wire, "wire", exchange::wire_bytes(type, count, dim));
  void* const to = wire.mutable_data();
  const GilRelease release;
  if (count > 0 && dim > 0) exchange::encode(process_executor(), type, from, count, dim, to);
}

void wire_decode(std::string_view dtype, const py::array& wire, py::array& rows) {
  const exchange::WireType type = wire_type(dtype);
  auto* const to = output<float>(rows, "rows", {kAny, kAny});
  const int64_t count = rows.shape(0);
  const int64_t dim = rows.shape(1);
  check_bytes(wire, "wire", exchange::wire_bytes(type, count, dim));
  const void* const from = wire.data();
  const GilRelease release;
  if (count > 0 && dim > 0) exchange::decode(process_executor(), type, from, count, dim, to);
}

int64_t row_bytes_of(const py::array& rows, const char* name) {
  if (rows.ndim() != 2 || (rows.flags() & py::array::c_style) == 0) {
    refuse(std::string(name) + " must have two dimensions and be C-contiguous");
  }
  return rows.shape(1) * rows.itemsize();
}

void place_rows(const py::array& rows, const py::array& places, py::array& out) {
  const int64_t row_bytes = row_bytes_of(rows, "rows");
  if (row_bytes_of(out, "out") != row_bytes) refuse("rows and out must have rows of the same size");
  const auto* at = input<int64_t>(places, "places", {rows.shape(0)});
  const int64_t count = rows.shape(0);
  const void* const from = rows.data();
  void* const to = out.mutable_data();
  const GilRelease release;
  exchange::place_rows(process_executor(), from, at, count, row_bytes, to);
}

}  // namespace

void bind_exchange(py::module_& module) {
  module.def("wire_encode", wire_encode, py::arg("dtype"), py::arg("rows"), py::arg("wire"));
  module.def("wire_decode", wire_decode, py::arg("dtype"), py::arg("wire"), py::arg("rows"));
  module.def("place_rows", place_rows, py::arg("rows"), py::arg("places"), py::arg("out"));
}
