// A GPU. Plain C++: only cuda_device.cc uses the CUDA runtime.
#ifndef SPARRING_HKV_DEVICE_CUDA_DEVICE_H_
#define SPARRING_HKV_DEVICE_CUDA_DEVICE_H_

#include <memory>
#include <string>

#include "memory.h"

namespace sparring::device {

// The number of GPUs. If it is 0, `reason` contains the cause (no driver, none visible, ...).
struct GpuCount {
  int count;
  std::string reason;
};
GpuCount count_gpus();

// Freed temporary memory of this size is kept for the next call. It grows to the maximum that calls
// have used at once, up to a fraction of the GPU's memory, and is released if memory runs out.
inline constexpr uint64_t kKeptBytes = uint64_t{256} << 20;
inline constexpr uint64_t kMostKeptShare = 50;  // a fiftieth

// Memory comes from two separate pools (cudaMallocAsync): one for tables, which keeps no freed
// memory, and one for calls, which keeps at least `kept_bytes`. Arrays of the framework come from
// its own allocator. Throws DeviceError if the GPU does not exist, and OutOfDeviceMemory if it has
// no memory for the kernels.
std::unique_ptr<Device> make_cuda_device(int index, uint64_t kept_bytes = kKeptBytes);

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_CUDA_DEVICE_H_
