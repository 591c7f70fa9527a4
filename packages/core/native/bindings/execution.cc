// sparring._native's part of the execution pool; see sparring/runtime/pool.py.
#include <pybind11/pybind11.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "bindings/gil.h"
#include "execution/parallel_for.h"
#include "execution/pool.h"
#include "execution/usable_cores.h"

namespace py = pybind11;
using sparring::bindings::call_or_park;
using sparring::bindings::GilRelease;
using sparring::bindings::is_finalizing;
using sparring::execution::Pool;
using sparring::execution::PoolBusyError;
using sparring::execution::PoolTask;

namespace {

// A Python callable on its way to a worker. Deletes itself when it has run.
class PythonCall final : public PoolTask {
 public:
  // Takes over the reference to `function`.
  explicit PythonCall(PyObject* function) : function_(function) {}

  void run() noexcept override {
    call_or_park([this] { call(); });
    delete this;
  }

 private:
  void call() {
    if (is_finalizing()) return;  // without the GIL the reference must leak
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject* result = PyObject_CallObject(function_, nullptr);
    if (result == nullptr) PyErr_WriteUnraisable(function_);
    Py_XDECREF(result);
    Py_DECREF(function_);
    PyGILState_Release(state);
  }

  PyObject* const function_;
};

void submit(py::function function) {
  auto call = std::make_unique<PythonCall>(function.ptr());
  function.inc_ref();  // the call's own
  try {
    // A `configure` under way holds the pool while it waits for calls to end.
    const GilRelease release;
    Pool::process().enqueue(*call);
    call.release();
  } catch (...) {
    function.dec_ref();
    throw;
  }
}

int threads_of_loop(int64_t count, int64_t grain, double range_seconds) {
  const GilRelease release;
  std::mutex mutex;
  std::set<std::thread::id> threads;
  sparring::execution::parallel_for(count, grain, [&](int64_t, int64_t) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(range_seconds);
    while (std::chrono::steady_clock::now() < end) {
    }
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  return static_cast<int>(threads.size());
}

}  // namespace

void bind_execution(py::module_& module) {
  py::register_exception<PoolBusyError>(module, "PoolBusyError", PyExc_RuntimeError);
  module.attr("POOL_MAX_THREADS") = Pool::max_threads;
  module.def(
      "pool_configure",
      [](int threads) {
        const GilRelease release;
        Pool::process().configure(threads);
      },
      py::arg("threads"),
      "0 means the number of usable cores. ValueError out of range, PoolBusyError with work.");
  module.def("pool_num_threads", [] { return Pool::process().num_threads(); });
  module.def("pool_submit", &submit, py::arg("function"),
             "Calls function() once on a worker thread; it must not raise.");
  module.def("pool_threads_of_loop", &threads_of_loop, py::arg("count"), py::arg("grain"),
             py::arg("range_seconds"),
             "Runs a loop whose ranges keep a core busy; returns how many threads took part.");
  module.def("is_pool_thread", &Pool::is_pool_thread);
  module.def("usable_cores", &sparring::execution::usable_cores);
}
