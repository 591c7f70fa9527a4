// Runs kernels on the host, exactly as written: each lane is a fiber, the lanes
// of a warp meet at warp operations, the warps of a block at block.sync(),
// blocks run on several threads at once.
//
//   launch ── blocks, in an order drawn by the seed ── threads of this process
//               └ block: warps, drawn again after each warp operation
//                   └ warp: lanes in an order drawn by the seed; a lane runs
//                     until it meets its sisters, or pauses at an atomic
//
// One seed gives one order, up to the race of blocks on different threads; the
// tests run each kernel under several seeds.
//
// A warp none of whose lanes can go on, and whose lanes wait at different
// places, or not all of them, is a broken kernel: launch throws KernelError,
// which names kernel, block, warp and both places. Nothing hangs but endless
// loops without an atomic or a warp operation in them.
#ifndef SPARRING_HKV_DEVICE_EMULATOR_H_
#define SPARRING_HKV_DEVICE_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <stdexcept>

namespace sparring::device {

// The kernel breaks a rule of warp.h.
class KernelError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace emulator {

// Under ThreadSanitizer a switch from lane to lane costs as much as there are lanes: tests try less.
#if defined(__SANITIZE_THREAD__)
constexpr bool kIsSlow = true;
#else
constexpr bool kIsSlow = false;
#endif

// How the launches of this process are run from now on.
struct Schedule {
  // 0: lanes, warps and blocks in order of their numbers.
  uint64_t seed = 0;
  // Blocks that run concurrently; 1: on the calling thread alone.
  unsigned num_threads = 2;
};
void set_schedule(const Schedule& schedule);
Schedule schedule();

// ---- what warp_emulated.h and atomics.h are made of ----

enum class Operation : uint8_t { kNone, kSync, kBallot, kShuffle, kMatch, kBlockSync, kDone };

// What the lanes of a warp bring to one operation.
struct Exchange {
  alignas(16) unsigned char values[32][16];
  uint32_t ballot;
};

class WarpRun;

struct Lane {
  WarpRun* warp;
  unsigned number;      // in its warp
  unsigned warp_index;  // in its block
  Operation waits_at;   // kNone: it can go on
  uint8_t value_bytes;
  bool parity;  // which of the warp's two exchanges is next
  std::source_location place;
};

struct BlockView {
  unsigned index;
  unsigned num_blocks;
  unsigned num_threads;
  void* shared;
};

void meet(Lane& self, Operation operation, const std::source_location& place);
uint32_t ballot(Lane& self, bool holds, const std::source_location& place);
// The values of all lanes; readable until the lane's next operation.
const Exchange& show(Lane& self, Operation operation, const void* value, size_t bytes,
                     const std::source_location& place);
void meet_block(Lane& self, const std::source_location& place);
// Others may run here. Nothing outside of kernels.
void pause_at_atomic();
// Throws KernelError from the launch unless `address` is a multiple of 16.
void check_aligned_to_16(const void* address);

// What launch() hands over: a kernel without its type.
struct Task {
  const void* kernel;
  void (*run)(const void* kernel, Lane& lane, const BlockView& view);
  const char* name;
  unsigned num_blocks;
  unsigned block_threads;
  size_t shared_bytes;
};
// Returns when all blocks have run. Throws KernelError.
void run(const Task& task);

}  // namespace emulator
}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_EMULATOR_H_
