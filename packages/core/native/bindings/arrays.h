// Checks of NumPy arrays in constant time: dtype, shape, layout. Python code checks the
// contents of arrays once, in functions that users call.
#ifndef SPARRING_BINDINGS_ARRAYS_H_
#define SPARRING_BINDINGS_ARRAYS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "kernels/row_layout.h"

namespace sparring::bindings {

// Stands for any length in the shapes that are passed as `expected`.
inline constexpr pybind11::ssize_t kAny = -1;

// Sets sparring.errors.InvalidArgumentError as Python's current error.
void set_refusal(const char* message);

// Raises InvalidArgumentError.
[[noreturn]] void refuse(const std::string& message);

// Raises InvalidArgumentError unless `array` is C-contiguous and its elements are aligned
// for their type.
void check_contiguous(const pybind11::array& array, const char* name);

// Raises InvalidArgumentError unless `array` is C-contiguous, aligned, of the shape,
// and, if wanted, writable.
void check_layout(const pybind11::array& array, const char* name,
                  std::initializer_list<pybind11::ssize_t> expected, bool is_written);

[[noreturn]] void refuse_dtype(const pybind11::array& array, const char* name,
                               const char* expected);

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<int64_t> {
  static constexpr char kind = 'i';
  static constexpr const char* name = "int64";
};
template <>
struct DtypeOf<int32_t> {
  static constexpr char kind = 'i';
  static constexpr const char* name = "int32";
};
template <>
struct DtypeOf<int8_t> {
  static constexpr char kind = 'i';
  static constexpr const char* name = "int8";
};
template <>
struct DtypeOf<uint8_t> {
  static constexpr char kind = 'b';
  static constexpr const char* name = "bool";
};
template <>
struct DtypeOf<float> {
  static constexpr char kind = 'f';
  static constexpr const char* name = "float32";
};
template <>
struct DtypeOf<double> {
  static constexpr char kind = 'f';
  static constexpr const char* name = "float64";
};

template <class T>
bool has_dtype(const pybind11::array& array) {
  const pybind11::dtype dtype = array.dtype();
  return dtype.kind() == DtypeOf<T>::kind &&
         dtype.itemsize() == static_cast<pybind11::ssize_t>(sizeof(T)) &&
         (dtype.byteorder() == '=' || dtype.byteorder() == '|');
}

// Returns the data of an array that is only read.
template <class T>
const T* input(const pybind11::array& array, const char* name,
               std::initializer_list<pybind11::ssize_t> shape) {
  if (!has_dtype<T>(array)) refuse_dtype(array, name, DtypeOf<T>::name);
  check_layout(array, name, shape, false);
  return static_cast<const T*>(array.data());
}

// Rows of an array: row i begins at data + i * stride.
template <class T>
struct StridedRows {
  const T* data;
  int64_t stride;  // elements
};

// Returns the rows of an array (rows, columns) that is only read; each row is contiguous.
template <class T>
StridedRows<T> strided_input(const pybind11::array& array, const char* name,
                             pybind11::ssize_t rows, pybind11::ssize_t columns) {
  constexpr auto kBytes = static_cast<pybind11::ssize_t>(sizeof(T));
  const bool has_rows = has_dtype<T>(array) && array.ndim() == 2 && array.shape(0) == rows &&
                        array.shape(1) == columns && rows > 1 && array.strides(1) == kBytes &&
                        array.strides(0) >= columns * kBytes && array.strides(0) % kBytes == 0 &&
                        reinterpret_cast<uintptr_t>(array.data()) % alignof(T) == 0;
  if (!has_rows) return {input<T>(array, name, {rows, columns}), columns};
  return {static_cast<const T*>(array.data()), array.strides(0) / kBytes};
}

// Like input(), but returns NULL for None.
template <class T>
const T* optional_input(const pybind11::object& object, const char* name,
                        std::initializer_list<pybind11::ssize_t> shape) {
  if (object.is_none()) return nullptr;
  if (!pybind11::isinstance<pybind11::array>(object)) {
    refuse(std::string(name) + " must be a NumPy array or None");
  }
  return input<T>(pybind11::reinterpret_borrow<pybind11::array>(object), name, shape);
}

// Returns the data of an array that is written.
template <class T>
T* output(pybind11::array& array, const char* name,
          std::initializer_list<pybind11::ssize_t> shape) {
  if (!has_dtype<T>(array)) refuse_dtype(array, name, DtypeOf<T>::name);
  check_layout(array, name, shape, true);
  return static_cast<T*>(array.mutable_data());
}

// Returns `out`, which must have this shape, or a new array if `out` is None.
template <class T>
pybind11::array given_or_new(const pybind11::object& out, pybind11::ssize_t rows,
                             pybind11::ssize_t columns) {
  if (out.is_none()) return pybind11::array_t<T>({rows, columns});
  if (!pybind11::isinstance<pybind11::array>(out)) refuse("out must be a NumPy array or None");
  auto array = pybind11::reinterpret_borrow<pybind11::array>(out);
  output<T>(array, "out", {rows, columns});
  return array;
}

// Returns the row type of the array's dtype. Raises InvalidArgumentError for other dtypes.
kernels::RowType row_type_of(const pybind11::array& array, const char* name);

// Calls body(T{}) with the array's dtype, float or double.
template <class Body>
auto with_float_dtype(const pybind11::array& array, const char* name, const Body& body) {
  if (has_dtype<float>(array)) return body(float{});
  if (has_dtype<double>(array)) return body(double{});
  refuse_dtype(array, name, "float32 or float64");
}

}  // namespace sparring::bindings

#endif  // SPARRING_BINDINGS_ARRAYS_H_
