#include "bindings/export.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "bindings/front.h"
#include "sparring/storage_abi.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

// The owner of one exported struct. Freed with the GIL.
struct Exported {
  SparringStorage storage;  // first, so that release can find the owner
  py::object adapter;
  std::string distribution;
  std::unique_ptr<Front> front;  // or NULL
};

void release_message(SparringError* error) {
  std::free(const_cast<char*>(error->message));
  error->message = nullptr;
}

void set_error(SparringCall* call, const std::string& message) {
  call->error.message = strdup(message.c_str());
  call->error.release = &release_message;
  call->error.owner = nullptr;
}

// Runs `body` with the GIL, and converts a Python exception to a status and a message.
// The adapter determines the status from the classes of sparring.errors.
template <typename Body>
SparringStatus guarded(void* self, SparringCall* call, Body body) {
  py::gil_scoped_acquire gil;
  auto* exported = static_cast<Exported*>(self);
  try {
    body(exported->adapter);
    return SPARRING_OK;
  } catch (py::error_already_set& error) {
    SparringStatus status = SPARRING_INTERNAL;
    std::string message = error.what();
    try {
      auto described = exported->adapter.attr("describe_error")(error.value())
                           .cast<std::pair<int, std::string>>();
      status = described.first;
      message = described.second;
    } catch (const std::exception&) {
      // Describing the exception failed, so the plain text and SPARRING_INTERNAL are returned.
      status = SPARRING_INTERNAL;
    }
    set_error(call, message);
    return status;
  } catch (const abi::StorageError& error) {
    set_error(call, error.what());
    return error.status;
  } catch (const std::exception& error) {
    set_error(call, error.what());
    return SPARRING_INTERNAL;
  }
}

// Arrays over the caller's memory, which are valid only during the call.
template <typename T>
py::array view(const T* data, std::vector<py::ssize_t> shape,
               std::vector<py::ssize_t> strides, bool writable) {
  // A base keeps NumPy from copying; this one owns nothing.
  py::array array(py::dtype::of<T>(), std::move(shape), std::move(strides), data,
                  py::capsule(data, [](void*) {}));
  if (!writable) {
    py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  }
  return array;
}

template <typename T>
py::array flat(const T* data, int64_t count, bool writable = false) {
  return view(data, {static_cast<py::ssize_t>(count)}, {static_cast<py::ssize_t>(sizeof(T))},
              writable);
}

py::array matrix(const void* data, int64_t count, uint64_t bytes, uint64_t stride,
                 bool writable) {
  return view(static_cast<const uint8_t*>(data),
              {static_cast<py::ssize_t>(count), static_cast<py::ssize_t>(bytes)},
              {static_cast<py::ssize_t>(stride), 1}, writable);
}

py::object optional_scores(const uint64_t* scores, int64_t count) {
  return scores != nullptr ? py::object(flat(scores, count)) : py::object(py::none());
}

SparringStatus find(void* self, SparringFind* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    const uint64_t bytes = a->columns.end - a->columns.begin;
    adapter.attr("find")(flat(a->keys, a->count), a->columns.begin, a->columns.end,
                         matrix(a->rows, a->count, bytes, a->row_stride, true),
                         flat(a->found, a->count, true));
  });
}

SparringStatus upsert(void* self, SparringUpsert* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    const auto bytes = adapter.attr("row_bytes").cast<uint64_t>();
    send_evicted(a->evicted, adapter.attr("upsert")(
                         flat(a->keys, a->count),
                         matrix(a->rows, a->count, bytes, a->row_stride, false),
                         optional_scores(a->scores, a->count)));
  });
}

SparringStatus erase(void* self, SparringErase* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    a->erased = adapter.attr("erase")(flat(a->keys, a->count)).cast<int64_t>();
  });
}

SparringStatus touch(void* self, SparringTouch* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    adapter.attr("touch")(flat(a->keys, a->count), optional_scores(a->scores, a->count));
  });
}

SparringStatus evict(void* self, SparringEvict* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    py::object evicted = adapter.attr("evict")(a->wanted);
    a->evicted = evicted.is_none() ? 0 : py::len(evicted.cast<py::tuple>()[0]);
    send_evicted(a->sink, evicted);
  });
}

SparringStatus scan(void* self, SparringScan* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    auto parts = adapter
                     .attr("scan")(std::make_pair(a->cursor[0], a->cursor[1]), a->capacity,
                                   a->columns.begin, a->columns.end)
                     .cast<py::tuple>();
    auto cursor = parts[0].cast<std::pair<uint64_t, uint64_t>>();
    auto keys = parts[2].cast<py::array_t<int64_t, py::array::c_style>>();
    auto rows = parts[3].cast<py::array_t<uint8_t, py::array::c_style>>();
    auto scores = parts[4].cast<py::array_t<uint64_t, py::array::c_style>>();
    if (keys.size() > a->capacity) throw std::runtime_error("scan: the storage returned more rows "
                                                            "than the capacity");
    a->cursor[0] = cursor.first;
    a->cursor[1] = cursor.second;
    a->is_done = parts[1].cast<bool>() ? 1 : 0;
    a->count = keys.size();
    std::memcpy(a->keys, keys.data(), keys.nbytes());
    if (a->rows != nullptr) std::memcpy(a->rows, rows.data(), rows.nbytes());
    if (a->scores != nullptr) std::memcpy(a->scores, scores.data(), scores.nbytes());
  });
}

SparringStatus visit(void* self, SparringVisit* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    const auto* exported = static_cast<Exported*>(self);
    exported->front->visit(adapter, exported->storage, a);
  });
}

SparringStatus update(void* self, SparringUpdate* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    const auto* exported = static_cast<Exported*>(self);
    exported->front->update(adapter, exported->storage, a);
  });
}

SparringStatus stat(void* self, SparringStat* a) {
  return guarded(self, &a->call, [&](py::object& adapter) {
    auto parts = adapter.attr("stat")().cast<std::tuple<uint64_t, uint64_t, int64_t, int64_t, uint64_t>>();
    std::tie(a->capabilities, a->row_bytes, a->size, a->capacity, a->memory_bytes) = parts;
  });
}

SparringStatus flush(void* self, SparringPlain* a) {
  return guarded(self, &a->call, [](py::object& adapter) { adapter.attr("flush")(); });
}

SparringStatus clear(void* self, SparringPlain* a) {
  return guarded(self, &a->call, [](py::object& adapter) { adapter.attr("clear")(); });
}

void release(SparringStorage* storage) {
  py::gil_scoped_acquire gil;
  delete static_cast<Exported*>(storage->self);
}

}  // namespace

void send_evicted(const SparringEvictionSink& sink, const py::object& evicted) {
  if (evicted.is_none() || sink.receive == nullptr) return;
  auto parts = evicted.cast<py::tuple>();
  auto keys = parts[0].cast<py::array_t<int64_t, py::array::c_style>>();
  auto rows = parts[1].cast<py::array_t<uint8_t, py::array::c_style>>();
  auto scores = parts[2].cast<py::array_t<uint64_t, py::array::c_style>>();
  if (sink.receive(sink.context, keys.size(), keys.data(), rows.data(), scores.data()) != 0) {
    throw std::runtime_error("the callback for evicted rows failed");
  }
}

py::capsule export_storage(py::object adapter, const std::string& distribution) {
  auto exported = std::make_unique<Exported>();
  exported->adapter = std::move(adapter);
  exported->distribution = distribution;
  SparringStorage& s = exported->storage;
  s = SparringStorage{};
  s.version = {SPARRING_STORAGE_ABI_MAJOR, SPARRING_STORAGE_ABI_MINOR};
  s.release = &release;
  s.struct_bytes = sizeof(SparringStorage);
  s.distribution = exported->distribution.c_str();
  s.self = exported.get();
  s.find = &find;
  s.upsert = &upsert;
  s.erase = &erase;
  s.scan = &scan;
  s.stat = &stat;
  s.flush = &flush;
  s.clear = &clear;
  if (exported->adapter.attr("offers_touch").cast<bool>()) s.touch = &touch;
  if (exported->adapter.attr("offers_evict").cast<bool>()) s.evict = &evict;
  const py::object first = exported->adapter.attr("first");
  if (!first.is_none()) {
    exported->front = std::make_unique<Front>(first.cast<py::capsule>());
    if (exported->front->offers_visit()) s.visit = &visit;
    if (exported->front->offers_update()) s.update = &update;
  }
  return py::capsule(&exported.release()->storage, SPARRING_STORAGE_CAPSULE, [](PyObject* object) {
    auto* storage = static_cast<SparringStorage*>(
        PyCapsule_GetPointer(object, SPARRING_STORAGE_CAPSULE));
    if (storage != nullptr) storage->release(storage);
  });
}

bool is_exported(const SparringStorage& storage) { return storage.find == &find; }

}  // namespace sparring::bindings
