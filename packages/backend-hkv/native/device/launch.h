// Starts kernels. Include it where nvcc compiles (*.cu), or for the emulator.
#ifndef SPARRING_HKV_DEVICE_LAUNCH_H_
#define SPARRING_HKV_DEVICE_LAUNCH_H_

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <typeinfo>

#include "memory.h"
#include "warp.h"

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

// Throws DeviceError if the launch, or anything before it, went wrong.
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
  run_kernel<Kernel><<<shape.num_blocks, Kernel::block_threads, shape.shared_bytes,
                       static_cast<cudaStream_t>(stream)>>>(kernel);
  throw_if_failed(cudaGetLastError(), typeid(Kernel).name());
}

#else

// Throws KernelError if the kernel breaks a rule of warp.h.
template <class Kernel>
void launch(Device& device, const Shape& shape, Stream, const Kernel& kernel) {
  const InUse here(device);
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::block_threads % warp_lanes == 0);
  device.check();
  const auto run = [](const void* self, emulator::Lane& lane, const emulator::BlockView& view) {
    (*static_cast<const Kernel*>(self))(Block(lane, view));
  };
  emulator::run({&kernel, run, typeid(Kernel).name(), shape.num_blocks, Kernel::block_threads,
                 shape.shared_bytes});
}

#endif

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_LAUNCH_H_
