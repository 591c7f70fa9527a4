// Launches kernels. Include it in files that nvcc compiles (*.cu), or for the emulator.
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
#include "launch_batch.h"
#include "memory.h"
#include "warp.h"

#if !defined(__CUDACC__)
#include "emulated_device.h"
#endif

namespace sparring::device {

// The number of blocks of `block_threads` for one thread per item, at most `most`, for kernels with
// a
// grid-stride loop.
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

// Like launch, but immediately. Throws DeviceError if the launch was rejected, OutOfDeviceMemory if
// memory was insufficient, and DeviceLost if the device failed before.
template <class Kernel>
void launch_now(Device& device, const Shape& shape, Stream stream, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::block_threads % warp_lanes == 0);
  const InUse here(device);
  static_cast<void>(KernelRecord<Kernel>::is_listed);  // this use adds the kernel to the list
  if (shape.shared_bytes > 48 * 1024) {
    throw_if_failed(cudaFuncSetAttribute(run_kernel<Kernel>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shape.shared_bytes)),
                    "requesting shared memory");
  }
  // Not <<<>>>, whose failure could not be told from an earlier error of the thread.
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

// Throws KernelError if the kernel violates a rule of warp.h; with a late stream, the wait throws
// it.
template <class Kernel>
void launch_now(Device& device, const Shape& shape, Stream stream, const Kernel& kernel) {
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

// Several kernels of one type, each with a range of blocks.
template <class Kernel>
struct BatchOf {
  static constexpr unsigned block_threads = Kernel::block_threads;
  const Kernel* kernels;         // (count) device
  const uint32_t* first_blocks;  // (count + 1) device
  uint32_t count;

  SPARRING_DEVICE void operator()(const Block& block) const {
    uint32_t low = 0;
    uint32_t high = count;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      if (first_blocks[middle] <= block.index()) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const Kernel kernel = kernels[low];
    kernel(block.part(first_blocks[low], first_blocks[low + 1] - first_blocks[low]));
  }
};

template <class Kernel>
inline constexpr LaunchBatch::Kind kBatchKind{
    sizeof(Kernel),
    [](Device& device, Stream stream, const Shape& shape, const void* bytes) {
      alignas(Kernel) unsigned char kernel[sizeof(Kernel)];
      std::memcpy(kernel, bytes, sizeof(Kernel));
      launch_now(device, shape, stream, *reinterpret_cast<const Kernel*>(kernel));
    },
    [](Device& device, Stream stream, unsigned num_blocks, const void* kernels,
       const uint32_t* first_blocks, uint32_t count) {
      launch_now(device, {num_blocks}, stream,
                 BatchOf<Kernel>{static_cast<const Kernel*>(kernels), first_blocks, count});
    }};

// Launches a kernel, or adds it to the batch of the thread. Throws the errors of launch_now.
template <class Kernel>
void launch(Device& device, const Shape& shape, Stream stream, const Kernel& kernel) {
  if constexpr (requires { Kernel::is_batched; }) {
    static_assert(alignof(Kernel) <= 16);
    if (LaunchBatch* const batch = LaunchBatch::current(device, stream))
      return batch->add(kBatchKind<Kernel>, shape, &kernel);
  }
  LaunchBatch::flush_current();
  launch_now(device, shape, stream, kernel);
}

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_LAUNCH_H_
