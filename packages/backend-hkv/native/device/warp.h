// What a kernel may use of the machine. A kernel is written once, against these
// names, and runs on CUDA (compiled by nvcc) or on the emulator (any C++20
// compiler), which tests prove it with.
//
// A kernel is a struct: its members are its arguments, copied to the device at
// the launch, and its call operator is the code of one thread.
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
//   1. Every warp operation (ballot, shuffle, match, any, all, sync) is met by
//      all 32 lanes of the warp, at one place in the code; every block.sync() by
//      all threads of the block. So what decides whether one is reached is the
//      same for the warp (or the block), and no lane returns before.
//   2. Memory is shared between concurrent threads only through the functions of
//      atomics.h; plain writes are seen by others of the warp after sync(), of
//      the block after block.sync(), by all at the end of the kernel.
//   3. Shared memory is what the launch asks for: block.shared(), 16-byte
//      aligned. No static __shared__ variables.
// The emulator reports a kernel that breaks rule 1, naming both places.
#ifndef SPARRING_HKV_DEVICE_WARP_H_
#define SPARRING_HKV_DEVICE_WARP_H_

#include <cstddef>
#include <cstdint>

#include "macros.h"

namespace sparring::device {

constexpr unsigned warp_lanes = 32;
constexpr unsigned all_lanes = 0xffffffffu;

// 16 bytes, moved at once.
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
