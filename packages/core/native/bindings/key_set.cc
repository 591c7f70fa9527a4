// sparring._native.KeySet: a set of changed keys.
#include "kernels/key_set.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <mutex>

#include "bindings/arrays.h"
#include "bindings/gil.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

class PyKeySet {
 public:
  py::array_t<bool> add(const py::array& keys) {
    const auto* from = input<int64_t>(keys, "keys", {kAny});
    py::array_t<bool> is_new(keys.shape(0));
    auto* to = reinterpret_cast<uint8_t*>(is_new.mutable_data());
    const int64_t count = keys.shape(0);
    const GilRelease release;
    const std::lock_guard<std::mutex> lock(mutex_);
    keys_.add(from, count, to);
    return is_new;
  }

  py::array_t<bool> contains(const py::array& keys) const {
    const auto* from = input<int64_t>(keys, "keys", {kAny});
    py::array_t<bool> is_in(keys.shape(0));
    auto* to = reinterpret_cast<uint8_t*>(is_in.mutable_data());
    const int64_t count = keys.shape(0);
    const GilRelease release;
    const std::lock_guard<std::mutex> lock(mutex_);
    keys_.contains(from, count, to);
    return is_in;
  }

  // Everything under the lock, which `add` acquires too, so that no key is added in between.
  py::array_t<int64_t> keys() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    py::array_t<int64_t> all(keys_.size());
    keys_.copy_to(all.mutable_data());
    return all;
  }

  int64_t size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return keys_.size();
  }

  int64_t memory_bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return keys_.memory_bytes();
  }

 private:
  mutable std::mutex mutex_;
  kernels::KeySet keys_;
};

}  // namespace
}  // namespace sparring::bindings

void bind_key_set(py::module_& module) {
  using sparring::bindings::PyKeySet;
  py::class_<PyKeySet>(module, "KeySet", "A set of keys. Thread-safe.")
      .def(py::init<>())
      .def("add", &PyKeySet::add, py::arg("keys").noconvert(),
           "Adds keys (n), and returns which of them were not in the set.")
      .def("contains", &PyKeySet::contains, py::arg("keys").noconvert(),
           "Returns which of the keys (n) are in the set.")
      .def("keys", &PyKeySet::keys, "Returns all keys, in any order.")
      .def("__len__", &PyKeySet::size)
      .def_property_readonly("memory_bytes", &PyKeySet::memory_bytes);
}
