#ifndef SPARRING_HKV_BINDINGS_DEVICE_FUSED_H_
#define SPARRING_HKV_BINDINGS_DEVICE_FUSED_H_

#include <pybind11/pybind11.h>

namespace sparring::hkv {

void bind_device_fused(pybind11::module_& module);

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_BINDINGS_DEVICE_FUSED_H_
