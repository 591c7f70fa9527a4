// sparring._native.StorageHandle: a capsule of storage_abi.h, called from
// Python with the GIL released.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "abi/storage_handle.h"
#include "bindings/arrays.h"
#include "bindings/export.h"
#include "bindings/gil.h"
#include "bindings/storage.h"
#include "execution/pool.h"
#include "kernels/blocked_bloom.h"
#include "sparring/python_errors.h"
#include "tiers/find_below.h"

namespace py = pybind11;
using sparring::abi::EvictedRows;
using sparring::abi::StorageError;
using sparring::abi::StorageHandle;
using sparring::bindings::kAny;
using sparring::bindings::input;
using sparring::execution::process_executor;
using sparring::kernels::BlockedBloom;
namespace tiers = sparring::tiers;

namespace {

using Keys = py::array_t<int64_t, py::array::c_style>;
using Scores = py::array_t<uint64_t, py::array::c_style>;

SparringStorage* from_capsule(const py::capsule& capsule) {
  const char* name = capsule.name();
  if (name == nullptr || std::strcmp(name, SPARRING_STORAGE_CAPSULE) != 0) {
    throw py::type_error(std::string("a capsule named \"") +
                         SPARRING_STORAGE_CAPSULE + "\" is expected, found \"" +
                         (name != nullptr ? name : "") + "\"");
  }
  return capsule.get_pointer<SparringStorage>();
}

// Passes the memory of a vector to NumPy without a copy.
template <typename T>
py::array adopt(std::vector<T>&& values, std::vector<py::ssize_t> shape,
                const char* dtype) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  void* data = owner->data();
  py::capsule base(owner.release(),
                   [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array(py::dtype(dtype), std::move(shape), data, base);
}

py::object evicted_tuple(EvictedRows&& evicted, uint64_t row_bytes) {
  if (evicted.keys.empty()) return py::none();
  const auto n = static_cast<py::ssize_t>(evicted.keys.size());
  return py::make_tuple(
      adopt(std::move(evicted.keys), {n}, "int64"),
      adopt(std::move(evicted.rows), {n, static_cast<py::ssize_t>(row_bytes)}, "uint8"),
      adopt(std::move(evicted.scores), {n}, "uint64"));
}

class PyStorageHandle {
 public:
  explicit PyStorageHandle(py::capsule capsule)
      : capsule_(std::move(capsule)), handle_(from_capsule(capsule_)) {
    row_bytes_ = handle_.stat().row_bytes;
  }

  // rows: (n, >= end - begin bytes) of any item size, rows C-contiguous.
  void find(const Keys& keys, uint64_t begin, uint64_t end, py::array& rows,
            py::array_t<bool>& found) const {
    SparringFind arguments{};
    arguments.count = keys.size();
    arguments.keys = keys.data();
    arguments.columns = {begin, end};
    arguments.rows = rows.mutable_data();
    arguments.row_stride = stride_of(rows);
    arguments.found = reinterpret_cast<uint8_t*>(found.mutable_data());
    check_shapes(keys.size(), rows, end - begin);
    if (found.size() != keys.size()) throw py::value_error("found has another length than keys");
    sparring::bindings::GilRelease release;
    handle_.find(arguments);
  }

  // Finds keys in the first tier of a stack, and missing ones in the tier below. staged_rows: array
  // for whole rows of as many keys, or None. Returns (number of keys found here, seconds, result of
  // `find_below`).
  py::tuple find_first(const Keys& keys, std::pair<uint64_t, uint64_t> columns, py::array& rows,
                       py::array_t<bool>& found, const PyStorageHandle& below,
                       const std::vector<const BlockedBloom*>& filters,
                       std::optional<py::array> staged_rows) const {
    const tiers::Asked asked = asked_for(keys, columns, rows, found);
    const auto count = static_cast<int64_t>(keys.size());
    Room room(count, staged_rows, below.row_bytes_);
    check_filters(filters);
    tiers::Through through;
    {
      sparring::bindings::GilRelease release;
      through = tiers::find_first(process_executor(), handle_,
                                  {below.handle_, filters, below.history_}, asked, count,
                                  room.missing.get(), room.staged());
    }
    return py::make_tuple(count - through.num_missing, through.seconds,
                          room.met(through.below, through.num_missing));
  }

  // Finds the keys at the positions `missing`, which no tier above has. Returns (keys found, (m)
  // positions still missing in any order, number of keys that the filters excluded, seconds).
  py::tuple find_below(const std::vector<const BlockedBloom*>& filters, const Keys& keys,
                       const py::array& missing, std::pair<uint64_t, uint64_t> columns,
                       py::array& rows, py::array_t<bool>& found,
                       std::optional<py::array> staged_rows) const {
    const tiers::Asked asked = asked_for(keys, columns, rows, found);
    const auto* const places = input<int64_t>(missing, "missing", {kAny});
    const auto num_missing = static_cast<int64_t>(missing.shape(0));
    Room room(num_missing, staged_rows, row_bytes_);
    check_filters(filters);
    std::copy_n(places, num_missing, room.missing.get());
    tiers::Below below;
    {
      sparring::bindings::GilRelease release;
      below = tiers::find_below(process_executor(), {handle_, filters, history_}, asked,
                                room.missing.get(), num_missing, room.staged());
    }
    return room.met(below, num_missing);
  }

  py::object upsert(const Keys& keys, const py::array& rows,
                    const std::optional<Scores>& scores) const {
    SparringUpsert arguments{};
    arguments.count = keys.size();
    arguments.keys = keys.data();
    arguments.rows = rows.data();
    arguments.row_stride = stride_of(rows);
    arguments.scores = scores ? scores->data() : nullptr;
    check_shapes(keys.size(), rows, row_bytes_);
    if (scores && scores->size() != keys.size()) {
      throw py::value_error("scores has another length than keys");
    }
    EvictedRows evicted;
    {
      sparring::bindings::GilRelease release;
      handle_.upsert(arguments, &evicted);
    }
    return evicted_tuple(std::move(evicted), row_bytes_);
  }

  int64_t erase(const Keys& keys) const {
    sparring::bindings::GilRelease release;
    return handle_.erase(keys.size(), keys.data());
  }

  void touch(const Keys& keys, const std::optional<Scores>& scores) const {
    SparringTouch arguments{};
    arguments.count = keys.size();
    arguments.keys = keys.data();
    arguments.scores = scores ? scores->data() : nullptr;
    if (scores && scores->size() != keys.size()) {
      throw py::value_error("scores has another length than keys");
    }
    sparring::bindings::GilRelease release;
    handle_.touch(arguments);
  }

  py::object evict(int64_t count) const {
    EvictedRows evicted;
    {
      sparring::bindings::GilRelease release;
      handle_.evict(count, &evicted);
    }
    return evicted_tuple(std::move(evicted), row_bytes_);
  }

  // One chunk: (cursor, is_done, keys (n), rows (n, end - begin) uint8, scores (n)).
  py::tuple scan(std::pair<uint64_t, uint64_t> cursor, int64_t capacity,
                 uint64_t begin, uint64_t end) const {
    const auto bytes = static_cast<py::ssize_t>(end - begin);
    py::array_t<int64_t> keys(capacity);
    py::array_t<uint8_t> rows({static_cast<py::ssize_t>(capacity), bytes});
    py::array_t<uint64_t> scores(capacity);
    SparringScan arguments{};
    arguments.cursor[0] = cursor.first;
    arguments.cursor[1] = cursor.second;
    arguments.capacity = capacity;
    arguments.columns = {begin, end};
    arguments.keys = keys.mutable_data();
    arguments.rows = rows.mutable_data();
    arguments.scores = scores.mutable_data();
    {
      sparring::bindings::GilRelease release;
      handle_.scan(arguments);
    }
    if (arguments.count < 0 || arguments.count > capacity) {
      throw StorageError(SPARRING_INTERNAL, "scan: the storage returned more rows than fit into "
                                            "the chunk; report this to its authors");
    }
    return py::make_tuple(
        std::make_pair(arguments.cursor[0], arguments.cursor[1]),
        arguments.is_done != 0, arguments.count, keys, rows, scores);
  }

  py::dict stat() const {
    SparringStat s;
    {
      sparring::bindings::GilRelease release;
      s = handle_.stat();
    }
    py::dict result;
    result["capabilities"] = s.capabilities;
    result["row_bytes"] = s.row_bytes;
    result["size"] = s.size;
    result["capacity"] = s.capacity;
    result["memory_bytes"] = s.memory_bytes;
    return result;
  }

  void flush() const {
    sparring::bindings::GilRelease release;
    handle_.flush();
  }
  void clear() const {
    sparring::bindings::GilRelease release;
    handle_.clear();
  }
  void set_option(const std::string& name, const std::string& value) const {
    sparring::bindings::GilRelease release;
    handle_.set_option(name, value);
  }

  const StorageHandle& handle() const { return handle_; }
  std::string distribution() const { return handle_.distribution(); }
  bool calls_python() const {
    return sparring::bindings::is_exported(*capsule_.get_pointer<SparringStorage>());
  }
  bool offers_touch() const { return handle_.offers_touch(); }
  bool offers_evict() const { return handle_.offers_evict(); }
  bool offers_visit() const { return handle_.offers_visit(); }
  py::capsule capsule() const { return capsule_; }

 private:
  // NumPy sets the stride of an axis of length 1 to any value, even 0.
  static uint64_t stride_of(const py::array& rows) {
    if (rows.ndim() != 2) return 0;  // which check_shapes rejects
    const py::ssize_t stride =
        rows.shape(0) > 1 ? rows.strides(0) : rows.shape(1) * rows.itemsize();
    return stride < 0 ? 0 : static_cast<uint64_t>(stride);
  }

  // Protects memory even if the engine skipped validation.
  static void check_shapes(py::ssize_t count, const py::array& rows, uint64_t bytes) {
    if (rows.ndim() != 2 || rows.shape(0) != count ||
        static_cast<uint64_t>(rows.shape(1) * rows.itemsize()) < bytes ||
        (rows.shape(1) > 1 && rows.strides(1) != rows.itemsize()) || stride_of(rows) < bytes) {
      throw py::value_error("rows must be (keys, columns) with contiguous rows");
    }
  }

  static tiers::Asked asked_for(const Keys& keys, std::pair<uint64_t, uint64_t> columns,
                                py::array& rows, py::array_t<bool>& found) {
    check_shapes(keys.size(), rows, columns.second - columns.first);
    if (found.size() != keys.size()) throw py::value_error("found has another length than keys");
    return {keys.data(),
            {columns.first, columns.second},
            static_cast<char*>(rows.mutable_data()),
            stride_of(rows),
            reinterpret_cast<uint8_t*>(found.mutable_data())};
  }

  static void check_filters(const std::vector<const BlockedBloom*>& filters) {
    if (filters.empty()) throw py::value_error("filters must contain at least one filter");
  }

  // The arrays for a find in a lower tier, for at most `count` keys.
  struct Room {
    Room(int64_t count, std::optional<py::array>& staged_rows, uint64_t row_bytes)
        : missing(std::make_unique_for_overwrite<int64_t[]>(static_cast<size_t>(count))),
          keys(std::make_unique_for_overwrite<int64_t[]>(static_cast<size_t>(count))) {
      if (!staged_rows) return;
      check_shapes(staged_rows->shape(0), *staged_rows, row_bytes);
      if (staged_rows->shape(0) < count || stride_of(*staged_rows) != row_bytes) {
        throw py::value_error("staged_rows must have space for all missing rows, and be contiguous");
      }
      rows = static_cast<char*>(staged_rows->mutable_data());
    }

    tiers::Staged staged() const { return {keys.get(), rows}; }

    py::tuple met(const tiers::Below& below, int64_t num_missing) const {
      return py::make_tuple(py::array_t<int64_t>(below.num_found, keys.get()),
                            py::array_t<int64_t>(num_missing - below.num_found, missing.get()),
                            below.num_skipped, below.seconds);
    }

    std::unique_ptr<int64_t[]> missing;
    std::unique_ptr<int64_t[]> keys;
    char* rows = nullptr;
  };

  py::capsule capsule_;
  StorageHandle handle_;
  uint64_t row_bytes_ = 0;
  mutable tiers::History history_;  // of finds in this storage as a lower tier
};

}  // namespace

namespace sparring::bindings {

const abi::StorageHandle* storage_handle_in(const py::handle& object) {
  return object.is_none() ? nullptr : &object.cast<const PyStorageHandle&>().handle();
}

}  // namespace sparring::bindings

void bind_storage(py::module_& module) {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StorageError& error) {
      sparring::border::set_python_error(error.status, error.what());
    } catch (const sparring::abi::VersionError& error) {
      const py::object type = py::module_::import("sparring.errors").attr("VersionError");
      PyErr_SetString(type.ptr(), error.what());
    }
  });
  module.attr("STORAGE_ABI") =
      py::make_tuple(SPARRING_STORAGE_ABI_MAJOR, SPARRING_STORAGE_ABI_MINOR);
  module.def("export_storage", &sparring::bindings::export_storage, py::arg("adapter"),
             py::arg("distribution"));
  py::class_<PyStorageHandle>(module, "StorageHandle")
      .def(py::init<py::capsule>(), py::arg("capsule"))
      .def("find", &PyStorageHandle::find, py::arg("keys").noconvert(), py::arg("begin"),
           py::arg("end"), py::arg("rows").noconvert(), py::arg("found").noconvert())
      .def("find_first", &PyStorageHandle::find_first, py::arg("keys").noconvert(),
           py::arg("columns"), py::arg("rows").noconvert(), py::arg("found").noconvert(),
           py::arg("below"), py::arg("filters"), py::arg("staged_rows").noconvert())
      .def("find_below", &PyStorageHandle::find_below, py::arg("filters"),
           py::arg("keys").noconvert(), py::arg("missing").noconvert(), py::arg("columns"),
           py::arg("rows").noconvert(), py::arg("found").noconvert(),
           py::arg("staged_rows").noconvert())
      .def("upsert", &PyStorageHandle::upsert, py::arg("keys").noconvert(),
           py::arg("rows").noconvert(), py::arg("scores").noconvert() = py::none())
      .def("erase", &PyStorageHandle::erase, py::arg("keys").noconvert())
      .def("touch", &PyStorageHandle::touch, py::arg("keys").noconvert(),
           py::arg("scores").noconvert() = py::none())
      .def("evict", &PyStorageHandle::evict, py::arg("count"))
      .def("scan", &PyStorageHandle::scan, py::arg("cursor"), py::arg("capacity"),
           py::arg("begin"), py::arg("end"))
      .def("stat", &PyStorageHandle::stat)
      .def("flush", &PyStorageHandle::flush)
      .def("clear", &PyStorageHandle::clear)
      .def("set_option", &PyStorageHandle::set_option, py::arg("name"), py::arg("value"))
      .def_property_readonly("distribution", &PyStorageHandle::distribution)
      .def_property_readonly("calls_python", &PyStorageHandle::calls_python)
      .def_property_readonly("offers_touch", &PyStorageHandle::offers_touch)
      .def_property_readonly("offers_evict", &PyStorageHandle::offers_evict)
      .def_property_readonly("offers_visit", &PyStorageHandle::offers_visit)
      .def_property_readonly("capsule", &PyStorageHandle::capsule);
}
