// sparring._native's part of the streams of a device; see sparring/runtime/streams.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "bindings/gil.h"
#include "execution/detached_task.h"
#include "execution/stream_scheduler.h"

namespace py = pybind11;
using namespace sparring::execution;
using sparring::bindings::GilRelease;
using sparring::bindings::PythonCallback;

namespace {

void* handle_of(uint64_t stream) { return reinterpret_cast<void*>(stream); }

// Calls function(None, None) on the pool after the stream has reached its current position. On
// failure, the arguments are the name of a class in sparring.errors and a message.
detached_task tell_when_reached(stream_scheduler place, PythonCallback function) {
  const char* kind = nullptr;
  std::string message;
  try {
    co_await schedule(place);
  } catch (const StreamLostError& found) {
    kind = "DeviceLostError", message = found.what();
  } catch (const StreamError& found) {
    kind = "DeviceError", message = found.what();
  } catch (const StreamDeadlineError& found) {
    kind = "DeadlineError", message = found.what();
  } catch (const std::exception& found) {
    kind = "InternalError", message = found.what();
  }
  function.call("zz", kind, kind == nullptr ? nullptr : message.c_str());
}

// The streams of one device.
class Streams {
 public:
  explicit Streams(const py::capsule& capsule) {
    auto* found = static_cast<SparringStreams*>(
        PyCapsule_GetPointer(capsule.ptr(), SPARRING_STREAMS_CAPSULE));
    if (found == nullptr) throw py::error_already_set();
    check_streams(*found);
    streams_ = found;
  }

  std::string device() const { return streams_->device; }

  uint64_t make_stream() const {
    SparringStreamCall call = make_call();
    run(streams_->make_stream, "creating a stream", call);
    return reinterpret_cast<uint64_t>(call.stream);
  }

  void free_stream(uint64_t stream) const {
    SparringStreamCall call = make_call();
    call.stream = handle_of(stream);
    run(streams_->free_stream, "freeing a stream", call);
  }

  void order_after(uint64_t stream, uint64_t other) const {
    const GilRelease release;
    StreamEvent(*streams_, handle_of(other)).order_before(handle_of(stream));
  }

  void begin_wait(uint64_t stream, double deadline_seconds, const py::function& function) const {
    // The limit of a clock in nanoseconds; a century is long enough.
    const double seconds = std::fmin(std::fmax(deadline_seconds, 0.0), 3e9);
    const auto deadline = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(seconds));
    PythonCallback callback(function.ptr());
    const GilRelease release;
    tell_when_reached({*streams_, handle_of(stream), deadline}, std::move(callback));
  }

  // (num_bytes) uint8, freed with the array.
  py::array_t<uint8_t> pinned(uint64_t num_bytes) const {
    SparringStreamCall call = make_call();
    call.num_bytes = num_bytes;
    run(streams_->allocate_pinned, "allocating pinned memory", call);
    struct Piece {
      const SparringStreams* streams;
      SparringStreamCall call;
    };
    auto piece = std::make_unique<Piece>(Piece{streams_, call});
    const py::capsule owner(piece.release(), [](void* owned) {
      const std::unique_ptr<Piece> mine(static_cast<Piece*>(owned));
      const GilRelease release;
      if (mine->streams->free_pinned(mine->streams->self, &mine->call) != SPARRING_OK &&
          mine->call.error.release != nullptr) {
        mine->call.error.release(&mine->call.error);
      }
    });
    return py::array_t<uint8_t>(static_cast<py::ssize_t>(num_bytes),
                                static_cast<const uint8_t*>(call.to), owner);
  }

  void copy(uint64_t to, uint64_t from, uint64_t num_bytes, uint64_t stream) const {
    SparringStreamCall call = make_call();
    call.to = handle_of(to);
    call.from = handle_of(from);
    call.num_bytes = num_bytes;
    call.stream = handle_of(stream);
    run(streams_->copy, "copying", call);
  }

 private:
  static SparringStreamCall make_call() {
    SparringStreamCall call{};
    call.struct_bytes = sizeof call;
    return call;
  }

  void run(SparringStreamFunction function, const char* doing, SparringStreamCall& call) const {
    const GilRelease release;
    call_streams(*streams_, function, doing, call);
  }

  const SparringStreams* streams_;
};

void translate(std::exception_ptr pointer) {
  const auto set = [](const char* name, const StreamError& error) {
    const py::object type = py::module_::import("sparring.errors").attr(name);
    PyErr_SetString(type.ptr(), error.what());
  };
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const StreamLostError& error) {
    set("DeviceLostError", error);
  } catch (const StreamError& error) {
    set("DeviceError", error);
  }
}

}  // namespace

void bind_streams(py::module_& module) {
  py::register_local_exception_translator(&translate);
  py::class_<Streams>(module, "Streams")
      .def(py::init<const py::capsule&>(), py::arg("capsule"))
      .def_property_readonly("device", &Streams::device)
      .def("make_stream", &Streams::make_stream)
      .def("free_stream", &Streams::free_stream, py::arg("stream"))
      .def("order_after", &Streams::order_after, py::arg("stream"), py::arg("other"))
      .def("begin_wait", &Streams::begin_wait, py::arg("stream"), py::arg("deadline_seconds"),
           py::arg("function"),
           "Calls function(kind, message) once; both are None if the stream reached its present position.")
      .def("pinned", &Streams::pinned, py::arg("num_bytes"))
      .def("copy", &Streams::copy, py::arg("to"), py::arg("from_"), py::arg("num_bytes"),
           py::arg("stream"));
  module.def("num_stream_waits", &num_stream_waits);
}
