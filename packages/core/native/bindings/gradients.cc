// sparring._native.GradientAccumulator, for float32 and float64.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/slices.h"
#include "exchange/tables.h"
#include "execution/senders.h"
#include "execution/pool.h"
#include "gradients/accumulator.h"
#include "kernels/dedup.h"
#include "bindings/gil.h"
#include "kernels/parallel.h"

namespace py = pybind11;
using sparring::bindings::input;
using sparring::bindings::kAny;
using sparring::bindings::refuse;
using sparring::bindings::Routes;
using sparring::bindings::Slices;
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

  // Adds without the GIL: `add(sums)` is called with room for `count` more keys. Returns whether there
  // is.
  template <class Add>
  bool add_without_gil(int64_t count, const Add& add) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::visit(
        [&](auto& sums) {
          const bool has_room = sums.size() + count <= sparring::kernels::kMostIds;
          if (has_room) add(sums);
          return has_room;
        },
        sums_);
  }

  bool is_double() const { return sums_.index() == 1; }

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
    check_room(has_room);
  }

 public:
  static void check_room(bool has_room) {
    if (has_room) return;
    refuse("at most " + std::to_string(sparring::kernels::kMostIds) +
           " keys can be summed; apply the step before adding more");
  }

 private:

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

// The tables of a push; see sparring/exchange/push.py. Each call processes all slices of a message.
class PyPushedTables {
 public:
  // accumulators: `GradientAccumulator` per table; keys (u), gradients (u, dim): of this rank.
  PyPushedTables(py::list accumulators, std::vector<py::array> keys,
                 std::vector<py::array> gradients, std::vector<py::array> orders, py::array ends)
      : accumulators_(std::move(accumulators)),
        keys_(std::move(keys)),
        gradients_(std::move(gradients)),
        routes_(std::move(orders), std::move(ends)) {
    const size_t count = routes_.num_tables();
    if (accumulators_.size() != count || keys_.size() != count || gradients_.size() != count) {
      refuse("accumulators, keys, gradients and orders must be of the same tables");
    }
    for (size_t i = 0; i < count; ++i) {
      auto& sums = accumulators_[i].cast<PyGradientAccumulator&>();
      const auto num_keys = static_cast<py::ssize_t>(routes_.num_keys(i));
      const int64_t dim = sums.dim();
      const void* const values =
          sums.is_double()
              ? static_cast<const void*>(input<double>(gradients_[i], "gradients", {num_keys, dim}))
              : input<float>(gradients_[i], "gradients", {num_keys, dim});
      const auto item_bytes = static_cast<int64_t>(sums.is_double() ? sizeof(double) : sizeof(float));
      tables_.push_back({&sums, input<int64_t>(keys_[i], "keys", {num_keys}),
                         static_cast<const std::byte*>(values), dim * item_bytes});
    }
  }

  // Writes the message with the keys (n) of `owner`, and their gradients.
  void pack(const Slices& slices, int64_t owner, const py::array& keys, py::array& message) const {
    const auto* const from = input<int64_t>(keys, "keys", {kAny});
    std::byte* to = sparring::bindings::message_bytes(message, bytes_of(slices));
    std::vector<sparring::exchange::PackPart> parts;
    for (const auto& slice : slices) {
      const int64_t* const places = routes_.places(owner, slice);
      const Table& table = tables_[static_cast<size_t>(slice[0])];
      const int64_t count = sparring::bindings::count_of(slice);
      if (slice[3] < 0 || slice[3] + count > keys.shape(0)) {
        refuse("a slice must be within the keys of its chunk");
      }
      std::copy_n(from + slice[3], count, reinterpret_cast<int64_t*>(to));
      std::byte* const rows = to + count * kKeyBytes;
      parts.push_back({table.gradients, places, count, table.row_bytes, rows});
      to += slice_bytes(table, count);
      std::fill(rows + count * table.row_bytes, to, std::byte{0});
    }
    const sparring::bindings::GilRelease release;
    sparring::exchange::pack_rows(process_executor(), parts);
  }

  // Adds the gradients of this rank's own keys.
  void add_own(int64_t rank) const {
    std::vector<Part> parts;
    for (size_t i = 0; i < tables_.size(); ++i) {
      const auto table = static_cast<int64_t>(i);
      const int64_t count = routes_.begin(table, rank + 1) - routes_.begin(table, rank);
      if (count == 0) continue;
      const Table& each = tables_[i];
      parts.push_back({each.sums, routes_.places(rank, {table, 0, count, 0}), count, each.keys,
                       each.gradients, each.row_bytes});
    }
    add_parts(parts);
  }

  // Adds the gradients of a message of another rank.
  void add(const Slices& slices, const py::array& message) const {
    const std::byte* from = sparring::bindings::message_bytes(message, bytes_of(slices));
    std::vector<Part> parts;
    for (const auto& slice : slices) {
      const Table& table = tables_[static_cast<size_t>(slice[0])];
      const int64_t count = sparring::bindings::count_of(slice);
      parts.push_back({table.sums, nullptr, count, reinterpret_cast<const int64_t*>(from),
                       from + count * kKeyBytes, table.row_bytes});
      from += slice_bytes(table, count);
    }
    add_parts(parts);
  }

  // Returns `GradientAccumulator.take` of each table.
  py::list take() const {
    py::list taken;
    for (const Table& table : tables_) taken.append(table.sums->take());
    return taken;
  }

 private:
  static constexpr int64_t kKeyBytes = sizeof(int64_t);

  struct Table {
    PyGradientAccumulator* sums;
    const int64_t* keys;
    const std::byte* gradients;
    int64_t row_bytes;
  };

  struct Part {
    PyGradientAccumulator* sums;
    const int64_t* places;  // or NULL
    int64_t count;
    const int64_t* keys;
    const std::byte* gradients;
    int64_t row_bytes;
  };

  // REQUIRES: each table has at most one part.
  static void add_parts(const std::vector<Part>& parts) {
    bool has_room = true;
    {
      const sparring::bindings::GilRelease release;
      const auto row_bytes = [](const Part& part) { return part.row_bytes; };
      std::atomic<bool> fits{true};
      sparring::exchange::for_each_part(process_executor(), parts, row_bytes, [&](const Part& part) {
        const bool was_added = part.sums->add_without_gil(part.count, [&]<class T>(
                                                              GradientAccumulator<T>& sums) {
          const auto* const values = reinterpret_cast<const T*>(part.gradients);
          if (part.places != nullptr) {
            sums.add_at(process_executor(), part.places, part.count, part.keys, values);
          } else {
            sums.add(process_executor(), part.keys, values, part.count);
          }
        });
        if (!was_added) fits = false;
      });
      has_room = fits;
    }
    PyGradientAccumulator::check_room(has_room);
  }

  static int64_t slice_bytes(const Table& table, int64_t count) {
    return sparring::exchange::align_bytes(count * (kKeyBytes + table.row_bytes));
  }

  int64_t bytes_of(const Slices& slices) const {
    int64_t num_bytes = 0;
    for (const auto& slice : slices) {
      num_bytes += slice_bytes(tables_.at(static_cast<size_t>(slice[0])),
                               sparring::bindings::count_of(slice));
    }
    return num_bytes;
  }

  py::list accumulators_;
  std::vector<py::array> keys_;
  std::vector<py::array> gradients_;
  Routes routes_;
  std::vector<Table> tables_;
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
  py::class_<PyPushedTables>(module, "PushedTables")
      .def(py::init<py::list, std::vector<py::array>, std::vector<py::array>,
                    std::vector<py::array>, py::array>(),
           py::arg("accumulators"), py::arg("keys"), py::arg("gradients"), py::arg("orders"),
           py::arg("ends"))
      .def("pack", &PyPushedTables::pack, py::arg("slices"), py::arg("owner"), py::arg("keys"),
           py::arg("message"))
      .def("add_own", &PyPushedTables::add_own, py::arg("rank"))
      .def("add", &PyPushedTables::add, py::arg("slices"), py::arg("message"))
      .def("take", &PyPushedTables::take);
}
