// The Python module sparring._native: one function per C++ function, without additional logic.
#include <pybind11/pybind11.h>

void bind_storage(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_gradients(pybind11::module_& module);
void bind_execution(pybind11::module_& module);
void bind_collection(pybind11::module_& module);
void bind_updates(pybind11::module_& module);
void bind_admission(pybind11::module_& module);
void bind_exchange(pybind11::module_& module);
void bind_bloom(pybind11::module_& module);
void bind_key_set(pybind11::module_& module);
void bind_streams(pybind11::module_& module);
void bind_strings(pybind11::module_& module);

PYBIND11_MODULE(_native, module) {
  module.doc() = "The native core of sparring. Use the Python modules that wrap it.";
  bind_execution(module);
  bind_kernels(module);
  bind_gradients(module);
  bind_storage(module);
  bind_admission(module);
  bind_collection(module);
  bind_updates(module);
  bind_exchange(module);
  bind_bloom(module);
  bind_key_set(module);
  bind_streams(module);
  bind_strings(module);
}
