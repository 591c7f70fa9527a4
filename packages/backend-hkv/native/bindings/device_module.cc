// The modules sparring_hkv._cuda and sparring_hkv._emulated, which is the same on the emulator.
// Importing them requires no driver.
#include <pybind11/pybind11.h>

#include <chrono>
#include <memory>
#include <string>

#include "bindings/device_arrays.h"
#include "bindings/device_fused.h"
#include "bindings/device_kernels.h"
#include "bindings/device_table.h"
#include "device/stream_table.h"
#include "sparring/python_errors.h"

#if SPARRING_HKV_IS_EMULATED
#include "device/emulated_device.h"
#include "device/emulator.h"
#else
#include "device/cuda_device.h"
#include "device/cuda_status.h"
#endif

namespace py = pybind11;
using namespace sparring::hkv;
namespace device = sparring::device;
namespace border = sparring::border;

namespace {

#if SPARRING_HKV_IS_EMULATED

std::unique_ptr<DeviceHandle> open_device(int index, uint64_t total_bytes) {
  return std::make_unique<DeviceHandle>(
      std::make_unique<device::EmulatedDevice>(total_bytes, index));
}

device::EmulatedDevice& emulated(DeviceHandle& handle) {
  return static_cast<device::EmulatedDevice&>(handle.device());
}

void bind_machine(py::module_& module, py::class_<DeviceHandle>& handle) {
  module.def("unavailable", [] { return py::none(); });
  module.def("num_devices", [] { return 1; });
  module.def("set_schedule", [](uint64_t seed, unsigned num_threads) {
    device::emulator::set_schedule({seed, num_threads});
  }, py::arg("seed"), py::arg("num_threads") = 2);
  module.def("num_waits", [] { return device::EmulatedDevice::num_waits_of_all(); },
             "Returns the number of waits for all emulated devices.");
  handle.def_property_readonly("work", [](DeviceHandle& self) {
    const device::EmulatedDevice& machine = emulated(self);
    py::dict found;
    found["launches"] = machine.num_launches();
    found["copies"] = machine.num_copies();
    found["fills"] = machine.num_fills();
    found["waits"] = machine.num_waits();
    found["lasting_allocations"] = machine.num_lasting_allocations();
    return found;
  }, "Numbers of operations on the device so far, by kind.");
  handle.def("refuse_once", [](DeviceHandle& self, int64_t n) { emulated(self).refuse_once(n); });
  module.def("current_device", [] { return device::EmulatedRuntime::current(); });
  module.def("set_current_device",
             [](int number) { device::EmulatedRuntime::choose(number); });
  module.def("num_default_uses", [] { return device::EmulatedDevice::streams.num_default_uses(); },
             "Returns how often work was enqueued on the default stream of any emulated device.");
  module.def("begin_capture", [](uint64_t stream) {
    device::EmulatedDevice::streams.begin_capture(reinterpret_cast<device::Stream>(stream));
  });
  module.def("end_capture", [](uint64_t stream) {
    return device::EmulatedDevice::streams.end_capture(reinterpret_cast<device::Stream>(stream));
  }, "Ends the capture of a stream, and returns whether it is valid.");
  handle.def("fail_from", [](DeviceHandle& self, int64_t n) { emulated(self).fail_from(n); })
      .def("break_down",
           [](DeviceHandle& self, std::string text) { emulated(self).break_down(std::move(text)); })
      .def("unload_kernels", [](DeviceHandle& self) { emulated(self).unload_kernels(); })
      .def("slow_down",
           [](DeviceHandle& self, int64_t milliseconds) {
             emulated(self).slow_down(std::chrono::milliseconds(milliseconds));
           })
      .def_property_readonly("num_waits",
                             [](DeviceHandle& self) { return emulated(self).num_waits(); });
}

#else

std::unique_ptr<DeviceHandle> open_device(int index, uint64_t) {
  return std::make_unique<DeviceHandle>(device::make_cuda_device(index));
}

void bind_machine(py::module_& module, py::class_<DeviceHandle>&) {
  module.def("unavailable", []() -> py::object {
    const device::GpuCount gpus = device::count_gpus();
    if (gpus.count > 0) return py::none();
    return py::str("no GPU: " + gpus.reason);
  });
  module.def("num_devices", [] { return device::count_gpus().count; });
  module.def("stays", [](int code) -> py::object {
    switch (device::severity_of(static_cast<cudaError_t>(code))) {
      case device::CudaSeverity::kCall: return py::bool_(false);
      case device::CudaSeverity::kLost: return py::bool_(true);
      default: return py::none();
    }
  }, "Returns whether an error of the CUDA runtime persists until the process ends; None: unknown.");
}

#endif

// Converts device errors to errors of sparring.errors, with the requested and the free bytes.
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const device::OutOfDeviceMemory& error) {
    const std::string text = border::device_memory_text({error.asked_bytes, error.free_bytes}) + error.note;
    border::set_python_error(SPARRING_DEVICE_MEMORY,
                             text + "; lower device_memory_bytes, or use smaller batches");
  } catch (const device::DeviceLost& error) {
    border::set_python_error(SPARRING_DEVICE_LOST, error.what());
  } catch (const device::StreamRefused& error) {
    border::set_python_error(SPARRING_INVALID_ARGUMENT, error.what());
  } catch (const device::DeviceError& error) {
    border::set_python_error(SPARRING_DEVICE_FAILED, error.what());
  }
}

}  // namespace

PYBIND11_MODULE(SPARRING_HKV_MODULE, module) {
  module.attr("__version__") = SPARRING_HKV_VERSION;
  py::register_local_exception_translator(&translate);
  // Module-local, because both modules may be loaded in one process.
  py::class_<DeviceHandle> handle(module, "Device", py::module_local());
  handle
      .def(py::init(&open_device), py::arg("index") = 0,
           py::arg("total_bytes") = uint64_t{1} << 40)
      .def_property_readonly("name", [](DeviceHandle& self) { return self.device().name(); })
      .def_property_readonly("free_bytes",
                             [](DeviceHandle& self) { return self.device().memory().free_bytes; })
      .def_property_readonly(
          "total_bytes", [](DeviceHandle& self) { return self.device().memory().total_bytes; });
  handle.def_property_readonly("memory_use", [](DeviceHandle& self) {
    const device::MemoryUse use = self.device().memory_use();
    py::dict found;
    found["lasting_bytes"] = use.lasting_bytes;
    found["temporary_bytes"] = use.temporary_bytes;
    found["kept_bytes"] = use.kept_bytes;
    return found;
  }, "Bytes of tables, bytes of calls in progress, and freed bytes that are kept for later calls.");
  handle.def("add_reclaimer", &DeviceHandle::add_reclaimer, py::arg("function"),
             "Adds a function that releases unused memory of the device, and returns whether there was any. "
             "It is called if the device has no memory left.");
  bind_machine(module, handle);
  module.def("streams", [](const DeviceHandle& self) {
    // The table of streams exists until the process ends.
    return py::capsule(device::streams_of(self.shared_device()), SPARRING_STREAMS_CAPSULE);
  }, py::arg("device"), "The device's streams as a capsule of stream_abi.h.");
  bind_device_kernels(module);
  bind_device_fused(module);
  bind_device_table(module);
}
