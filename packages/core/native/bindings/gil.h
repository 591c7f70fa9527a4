// The GIL, for threads that may outlive the interpreter.
//
// When the interpreter has ended, CPython before 3.14 ends any other thread that wants
// the GIL by unwinding its stack, which C++ sees as an exception of type
// abi::__forced_unwind. It aborts the process where it meets a noexcept frame, as a
// destructor is (pybind11::gil_scoped_release), or a handler that swallows it, as
// oneTBB's. So threads that are late stay where they are until the process is gone,
// which is what CPython itself does from 3.14 on.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <utility>

namespace sparring::bindings {

// Whether the interpreter is ending: other threads get the GIL no more.
inline bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Calls function(); if the interpreter ends this thread meanwhile, never returns.
template <typename Function>
void call_or_park(Function&& function) noexcept {
  try {
    function();
  } catch (::abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Gives the GIL up for the life of this object.
class GilRelease {
 public:
  GilRelease() : thread_(PyEval_SaveThread()) {}
  ~GilRelease() {
    call_or_park([this] { PyEval_RestoreThread(thread_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const thread_;
};

// A Python function that a native thread calls once, at some time.
class PythonCallback {
 public:
  // REQUIRES: the GIL.
  explicit PythonCallback(PyObject* function) : function_(Py_NewRef(function)) {}
  PythonCallback(PythonCallback&& other) noexcept
      : function_(std::exchange(other.function_, nullptr)) {}
  PythonCallback& operator=(PythonCallback&&) = delete;
  ~PythonCallback() {
    if (function_ != nullptr) with_gil([] {});
  }

  // Calls it with arguments as of Py_BuildValue (NULL: none) and frees it. What it raises is
  // reported as unraisable. Where the interpreter is ending, it is not called.
  template <typename... Arguments>
  void call(const char* format, Arguments... arguments) noexcept {
    with_gil([&] {
      PyObject* result = PyObject_CallFunction(function_, format, arguments...);
      if (result == nullptr) PyErr_WriteUnraisable(function_);
      Py_XDECREF(result);
    });
  }

 private:
  template <typename Body>
  void with_gil(const Body& body) noexcept {
    call_or_park([&] {
      if (is_finalizing()) return;  // without the GIL the reference must leak
      const PyGILState_STATE state = PyGILState_Ensure();
      body();
      Py_CLEAR(function_);
      PyGILState_Release(state);
    });
  }

  PyObject* function_;
};

}  // namespace sparring::bindings
