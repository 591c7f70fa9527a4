#ifndef SPARRING_HKV_BINDINGS_DEVICE_TABLE_H_
#define SPARRING_HKV_BINDINGS_DEVICE_TABLE_H_

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>

#include "device/memory.h"

namespace sparring::hkv {

// `open(index)` opens the device that a table lies on.
void bind_device_table(pybind11::module_& module,
                       std::function<std::unique_ptr<device::Device>(int)> open);

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_BINDINGS_DEVICE_TABLE_H_
