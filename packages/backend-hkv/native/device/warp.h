// The operations that kernels may use. A kernel is written once with these names
// and runs on CUDA (compiled by nvcc) or on the emulator (any C++20 compiler), on
// which it is tested.
//
// A kernel is a struct: its members are its arguments, which are copied to the
// device at the launch, and its call operator is the code of one thread.
//
//   struct Doubles {
//     static constexpr unsigned block_threads = 256;   // a multiple of 32
//     float* values;                                    // (n) float32, device
//     uint64_t n;
//     SPARRING_DEVICE void operator()(const Block& block) const {
//       for (uint64_t i = block.thread_in_grid(); i < n; i += block.grid_threads())
//         values[i] *= 2;
//     }
//   };
//   launch(device, {.num_blocks = 8}, stream, Doubles{values, n});
//
// Rules
//   1. Every warp operation (ballot, shuffle, match, any, all, sync) must be
//      executed by all 32 lanes of the warp at one location in the code, and
//      every block.sync() by all threads of the block. Therefore conditions that
//      decide about one must be uniform in the warp (or the block), and no lane
//      may return earlier.
//   2. Concurrent threads share memory only through the functions of atomics.h;
//      plain writes are visible to the warp after sync(), to the block after
//      block.sync(), and to all at the end of the kernel.
//   3. Shared memory is requested at the launch: block.shared(), 16-byte aligned.
//      There are no static __shared__ variables.
// The emulator reports a kernel that violates rule 1, with both locations.
#ifndef SPARRING_HKV_DEVICE_WARP_H_
#define SPARRING_HKV_DEVICE_WARP_H_

#include <cstddef>
#include <cstdint>

#include "macros.h"

namespace sparring::device {

constexpr unsigned warp_lanes = 32;
constexpr unsigned all_lanes = 0xffffffffu;

// 16 bytes that are moved with one access.
struct alignas(16) Vector16 {
  uint32_t words[4];
};

}  // namespace sparring::device

#if defined(__CUDACC__)
#include "warp_cuda.h"
#else
#include "warp_emulated.h"
#endif

#include "bits.h"

#endif  // SPARRING_HKV_DEVICE_WARP_H_
