// A GPU. Plain C++: the CUDA runtime is behind cuda_device.cc.
#ifndef SPARRING_HKV_DEVICE_CUDA_DEVICE_H_
#define SPARRING_HKV_DEVICE_CUDA_DEVICE_H_

#include <memory>
#include <optional>
#include <string>

#include "memory.h"

namespace sparring::device {

// How many GPUs there are. 0: `reason` says why (no driver, none visible, ...).
struct GpuCount {
  int count;
  std::string reason;
};
GpuCount count_gpus();

// Memory comes from the framework's allocator if given, else from a pool of its
// own (cudaMallocAsync). Throws DeviceError where there is no such GPU.
std::unique_ptr<Device> make_cuda_device(
    int index, const std::optional<FrameworkAllocator>& allocator = std::nullopt);

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_CUDA_DEVICE_H_
