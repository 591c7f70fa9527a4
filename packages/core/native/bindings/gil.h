// The GIL, for threads that may outlive the interpreter.
//
// After the interpreter has ended, CPython before 3.14 terminates any other thread that
// requests the GIL by unwinding its stack. C++ sees this as an exception of type
// abi::__forced_unwind. The process aborts if it reaches a noexcept frame, such as a
// destructor (pybind11::gil_scoped_release), or a handler that swallows it, such as
// oneTBB's. Late threads therefore block until the process ends, like in CPython itself
// from 3.14.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <utility>

namespace sparring::bindings {

// Whether the interpreter is ending, so that other threads can no longer acquire the GIL.
inline bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Calls function(). Never returns if the interpreter terminates this thread during the call.
template <typename Function>
void call_or_park(Function&& function) noexcept {
  try {
    function();
  } catch (::abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Releases the GIL for the lifetime of this object.
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

// A Python function that a native thread calls once, later.
class PythonCallback {
 public:
  // REQUIRES: the GIL is held.
  explicit PythonCallback(PyObject* function) : function_(Py_NewRef(function)) {}
  PythonCallback(PythonCallback&& other) noexcept
      : function_(std::exchange(other.function_, nullptr)) {}
  PythonCallback& operator=(PythonCallback&&) = delete;
  ~PythonCallback() {
    if (function_ != nullptr) with_gil([] {});
  }

  // Calls it with arguments in the format of Py_BuildValue (NULL: none), and frees it. Exceptions
  // are reported as unraisable. It is not called if the interpreter is ending.
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
