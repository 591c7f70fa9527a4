// sparring._native's part of the execution pool; see sparring/runtime/pool.py.
#include <pybind11/pybind11.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "execution/detached_task.h"
#include "execution/framework_threads.h"
#include "execution/parallel_for.h"
#include "execution/pool.h"
#include "execution/pool_scheduler.h"
#include "execution/usable_cores.h"

namespace py = pybind11;
using sparring::bindings::GilRelease;
using sparring::bindings::PythonCallback;
using sparring::execution::detached_task;
using sparring::execution::Pool;
using sparring::execution::pool_scheduler;
using sparring::execution::PoolBusyError;

namespace {

detached_task call_on_worker(PythonCallback function) {
  try {
    co_await schedule(pool_scheduler());
  } catch (const std::exception&) {
    // If there is no memory or thread for a worker, this thread does the work.
  }
  function.call(nullptr);
}

void submit(const py::function& function) {
  PythonCallback callback(function.ptr());
  // A `configure` in progress locks the pool while it waits for calls to end.
  const GilRelease release;
  call_on_worker(std::move(callback));
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

void borrow_threads(uintptr_t parallel_for, uintptr_t num_threads) {
  if (parallel_for == 0 || num_threads == 0) {
    sparring::bindings::refuse(
        "borrow_threads: an address must not be 0; pass the addresses of both functions");
  }
  using sparring::execution::FrameworkThreads;
  sparring::execution::borrow(
      {reinterpret_cast<decltype(FrameworkThreads::parallel_for)>(parallel_for),
       reinterpret_cast<decltype(FrameworkThreads::num_threads)>(num_threads)});
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
      "Sets the number of threads; 0 means the number of usable cores. Raises ValueError if it is out "
      "of range, and PoolBusyError if the pool has work.");
  module.def("pool_num_threads", [] { return Pool::process().num_threads(); });
  module.def("pool_submit", &submit, py::arg("function"),
             "Calls function() once on a worker thread, or on this thread if none can be started; it must "
             "not raise.");
  module.def("pool_threads_of_loop", &threads_of_loop, py::arg("count"), py::arg("grain"),
             py::arg("range_seconds"),
             "Runs a loop whose ranges keep a core busy, and returns the number of threads that took part.");
  module.def("borrow_threads", &borrow_threads, py::arg("parallel_for"), py::arg("num_threads"),
             "Uses the functions of FrameworkThreads at these addresses for loops of the calling thread.");
  module.def("give_back_threads", &sparring::execution::give_back);
  module.def("is_pool_thread", &Pool::is_pool_thread);
  module.def("usable_cores", &sparring::execution::usable_cores);
  module.def("default_threads", &sparring::execution::default_threads);
}
