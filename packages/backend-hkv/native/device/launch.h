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

// Throws DeviceError if the launch was refused, DeviceLost if the device failed before.
template <class Kernel>
void launch(Device& device, const Shape& shape, Stream stream, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::block_threads % warp_lanes == 0);
  const InUse here(device);
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
  throw_if_failed(cudaLaunchKernelEx(&config, run_kernel<Kernel>, kernel), typeid(Kernel).name());
}

#else

// Throws KernelError if the kernel breaks a rule of warp.h; of a late stream, from the wait.
template <class Kernel>
void launch(Device& device, const Shape& shape, Stream stream, const Kernel& kernel) {
  const InUse here(device);
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::block_threads % warp_lanes == 0);
  auto& emulated = static_cast<EmulatedDevice&>(device);
  emulated.begin_launch();
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
