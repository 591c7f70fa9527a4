// Starts kernels. Include it where nvcc compiles (*.cu), or for the emulator.
#ifndef SPARRING_HKV_DEVICE_LAUNCH_H_
#define SPARRING_HKV_DEVICE_LAUNCH_H_

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <typeinfo>

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include "cuda_status.h"
#endif

#include "kernel_list.h"
#include "memory.h"
#include "warp.h"

#if !defined(__CUDACC__)
#include "emulated_device.h"
#endif

namespace sparring::device {

struct Shape {
  unsigned num_blocks;  // at least one
  size_t shared_bytes = 0;
};

// Enough blocks of `block_threads` for one thread a piece, at most `most`: for
// kernels that stride over the grid.
constexpr unsigned blocks_for(uint64_t num_pieces, unsigned block_threads, unsigned most) {
  const uint64_t blocks = (num_pieces + block_threads - 1) / block_threads;
  return static_cast<unsigned>(std::clamp<uint64_t>(blocks, 1, most));
}

#if defined(__CUDACC__)

template <class Kernel>
__global__ void __launch_bounds__(Kernel::block_threads) run_kernel(const __grid_constant__ Kernel kernel) {
  kernel(Block());
}

template <class Kernel>
struct KernelRecord {
  static const bool is_listed;
};
template <class Kernel>
const bool KernelRecord<Kernel>::is_listed =
    list_kernel(reinterpret_cast<const void*>(&run_kernel<Kernel>));

// Throws DeviceError if the launch was refused, OutOfDeviceMemory if for want of memory, DeviceLost if the device failed before.
template <class Kernel>
void launch(Device& device, const Shape& shape, Stream stream, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::block_threads % warp_lanes == 0);
  const InUse here(device);
  static_cast<void>(KernelRecord<Kernel>::is_listed);  // this use of it lists the kernel
  if (shape.shared_bytes > 48 * 1024) {
    throw_if_failed(cudaFuncSetAttribute(run_kernel<Kernel>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shape.shared_bytes)),
                    "asking for shared memory");
  }
  // Not <<<>>>, whose failure is told from what others left in the thread's last error.
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.num_blocks);
  config.blockDim = dim3(Kernel::block_threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t status = cudaLaunchKernelEx(&config, run_kernel<Kernel>, kernel);
  if (status != cudaSuccess)
    throw_if_start_failed(status, "starting kernel " + plain_name(typeid(Kernel).name()));
}

#else

template <class Kernel>
struct KernelRecord {
  static const bool is_listed;
};
template <class Kernel>
const bool KernelRecord<Kernel>::is_listed = list_kernel(&KernelRecord<Kernel>::is_listed);

// Throws KernelError if the kernel breaks a rule of warp.h; of a late stream, from the wait.
template <class Kernel>
void launch(Device& device, const Shape& shape, Stream stream, const Kernel& kernel) {
  const InUse here(device);
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::block_threads % warp_lanes == 0);
  auto& emulated = static_cast<EmulatedDevice&>(device);
  emulated.begin_launch(stream, &KernelRecord<Kernel>::is_listed, typeid(Kernel).name());
  const auto run = [](const void* self, emulator::Lane& lane, const emulator::BlockView& view) {
    (*static_cast<const Kernel*>(self))(Block(lane, view));
  };
  emulated.put(stream, [kernel, shape, run] {
    emulator::run({&kernel, run, typeid(Kernel).name(), shape.num_blocks, Kernel::block_threads,
                   shape.shared_bytes});
  });
}

#endif

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_LAUNCH_H_
