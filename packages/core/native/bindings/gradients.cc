// sparring._native.GradientAccumulator, for float32 and float64.
#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/arrays.h"
#include "execution/pool.h"
#include "gradients/accumulator.h"
#include "kernels/dedup.h"
#include "bindings/gil.h"

namespace py = pybind11;
using sparring::bindings::input;
using sparring::bindings::kAny;
using sparring::bindings::refuse;
using sparring::execution::process_executor;
using sparring::gradients::Buffer;
using sparring::gradients::GradientAccumulator;

namespace {

// Passes the memory of a buffer to NumPy without a copy.
template <class T>
py::array adopt(Buffer<T>&& buffer, std::initializer_list<py::ssize_t> shape) {
  if (buffer.data() == nullptr) return py::array_t<T>(shape);
  py::capsule owner(buffer.data(), [](void* memory) { std::free(memory); });
  return py::array_t<T>(shape, buffer.release(), owner);
}

// Safe for concurrent use, unlike the wrapped class, because Python cannot detect that a
// call on another thread has released the GIL.
class PyGradientAccumulator {
  using Sums = std::variant<GradientAccumulator<float>, GradientAccumulator<double>>;

  // The GIL is released first. Otherwise a thread with the lock that waits for the GIL, and a
  // thread with the GIL that waits for the lock, would deadlock.
  template <class Call>
  auto locked(const Call& call) {
    sparring::bindings::GilRelease release;
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::visit(call, sums_);
  }

 public:
  PyGradientAccumulator(int64_t dim, std::string_view dtype) : sums_(make(dim, dtype)) {}

  void add(const py::array& keys, const py::array& gradients) {
    std::visit([&](auto& sums) { add_to(sums, keys, gradients); }, sums_);
  }

  py::tuple take() {
    return std::visit([&](auto& sums) { return take_from(sums); }, sums_);
  }

  // A copy, since another thread may add to them at any time.
  py::array_t<int64_t> keys_from(int64_t begin) {
    std::vector<int64_t> found = locked([begin](auto& sums) {
      const int64_t first = std::clamp<int64_t>(begin, 0, sums.size());
      return std::vector<int64_t>(sums.keys() + first, sums.keys() + sums.size());
    });
    return py::array_t<int64_t>(static_cast<py::ssize_t>(found.size()), found.data());
  }

  void clear() {
    locked([](auto& sums) { return sums.clear(); });
  }

  int64_t size() {
    return locked([](auto& sums) { return sums.size(); });
  }

  int64_t dim() {
    return locked([](auto& sums) { return sums.dim(); });
  }

  int64_t memory_bytes() {
    return locked([](auto& sums) { return sums.memory_bytes(); });
  }

 private:
  static Sums make(int64_t dim, std::string_view dtype) {
    if (dim < 1) refuse("dim must be at least 1, found " + std::to_string(dim));
    if (dtype == "float32") return GradientAccumulator<float>(dim);
    if (dtype == "float64") return GradientAccumulator<double>(dim);
    refuse("dtype must be float32 or float64, found '" + std::string(dtype) + "'");
  }

  template <class T>
  void add_to(GradientAccumulator<T>& sums, const py::array& keys, const py::array& gradients) {
    const auto* from = input<int64_t>(keys, "keys", {kAny});
    const int64_t count = keys.shape(0);
    const auto* values = input<T>(gradients, "gradients", {count, sums.dim()});
    bool has_room = false;
    {
      sparring::bindings::GilRelease release;
      const std::lock_guard<std::mutex> lock(mutex_);
      has_room = sums.size() + count <= sparring::kernels::kMostIds;
      if (has_room) sums.add(process_executor(), from, values, count);
    }
    if (!has_room) {
      refuse("at most " + std::to_string(sparring::kernels::kMostIds) +
             " keys can be summed; apply the step before adding more");
    }
  }

  template <class T>
  py::tuple take_from(GradientAccumulator<T>& sums) {
    typename GradientAccumulator<T>::Sums taken;
    {
      sparring::bindings::GilRelease release;
      const std::lock_guard<std::mutex> lock(mutex_);
      taken = sums.take();
    }
    return py::make_tuple(adopt(std::move(taken.keys), {taken.size}),
                          adopt(std::move(taken.gradients), {taken.size, sums.dim()}));
  }

  std::mutex mutex_;
  Sums sums_;
};

}  // namespace

void bind_gradients(py::module_& module) {
  py::class_<PyGradientAccumulator>(
      module, "GradientAccumulator",
      "Sums gradients by key in native memory. The keys of one `add` must be unique.")
      .def(py::init<int64_t, std::string_view>(), py::arg("dim"), py::arg("dtype") = "float32")
      .def("add", &PyGradientAccumulator::add, py::arg("keys"), py::arg("gradients"),
           "Adds gradients (u, dim) of keys (u) int64.")
      .def("take", &PyGradientAccumulator::take,
           "Returns the keys (u), in the order of their first occurrence, and their sums (u, dim), "
           "and resets the accumulator.")
      .def("keys_from", &PyGradientAccumulator::keys_from, py::arg("begin"),
           "Returns the keys from position `begin` on, in the order of their first occurrence.")
      .def("clear", &PyGradientAccumulator::clear, "Drops all sums.")
      .def("__len__", &PyGradientAccumulator::size)
      .def_property_readonly("size", &PyGradientAccumulator::size, "Number of keys.")
      .def_property_readonly("dim", &PyGradientAccumulator::dim)
      .def_property_readonly("memory_bytes", &PyGradientAccumulator::memory_bytes);
}
