// A GPU. Plain C++: the CUDA runtime is behind cuda_device.cc.
#ifndef SPARRING_HKV_DEVICE_CUDA_DEVICE_H_
#define SPARRING_HKV_DEVICE_CUDA_DEVICE_H_

#include <memory>
#include <string>

#include "memory.h"

namespace sparring::device {

// How many GPUs there are. 0: `reason` says why (no driver, none visible, ...).
struct GpuCount {
  int count;
  std::string reason;
};
GpuCount count_gpus();

// Of temporary memory that was given back so much is kept for the next call at first, and asked of
// the driver no more; then as much as calls have had at once, up to this share of the GPU's memory. It
// is let go where memory runs short.
inline constexpr uint64_t kKeptBytes = uint64_t{256} << 20;
inline constexpr uint64_t kMostKeptShare = 50;  // a fiftieth

// Memory comes from two pools of its own (cudaMallocAsync): one for tables, which keeps nothing
// that is given back, and one for what calls need, which keeps `kept_bytes` or more. Arrays of the framework
// are its own allocator's, and are handed over. Throws DeviceError where there is no such GPU,
// OutOfDeviceMemory where it has no memory for the kernels.
std::unique_ptr<Device> make_cuda_device(int index, uint64_t kept_bytes = kKeptBytes);

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_CUDA_DEVICE_H_
