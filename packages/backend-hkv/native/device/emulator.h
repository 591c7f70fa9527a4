// Runs kernels on the host, unchanged: each lane is a fiber, the lanes of a warp
// synchronize at warp operations and the warps of a block at block.sync(), and
// blocks run concurrently on several threads.
//
//   launch ── blocks, in a random order given by the seed ── threads of this process
//               └ block: warps, in a new random order after each warp operation
//                   └ warp: lanes in a random order; a lane runs until it
//                     reaches a warp operation, or pauses at an atomic
//
// One seed determines the order, except for the race of blocks on different
// threads; the tests run each kernel with several seeds.
//
// If no lane of a warp can continue and not all lanes wait at the same operation,
// the kernel is incorrect: launch throws KernelError with the kernel, block, warp
// and both locations. Only endless loops without an atomic or a warp operation
// can hang.
#ifndef SPARRING_HKV_DEVICE_EMULATOR_H_
#define SPARRING_HKV_DEVICE_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <stdexcept>

namespace sparring::device {

// The kernel violates a rule of warp.h.
class KernelError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace emulator {

// Under ThreadSanitizer the cost of switching lanes grows with their number, so tests do less.
#if defined(__SANITIZE_THREAD__)
constexpr bool kIsSlow = true;
#else
constexpr bool kIsSlow = false;
#endif

// How further launches of this process are run.
struct Schedule {
  // 0: lanes, warps and blocks in the order of their numbers.
  uint64_t seed = 0;
  // Number of concurrent blocks; 1: only on the calling thread.
  unsigned num_threads = 2;
};
void set_schedule(const Schedule& schedule);
Schedule schedule();

// ---- functions for warp_emulated.h and atomics.h ----

enum class Operation : uint8_t { kNone, kSync, kBallot, kShuffle, kMatch, kBlockSync, kDone };

// The values that the lanes of a warp contribute to one operation.
struct Exchange {
  alignas(16) unsigned char values[32][16];
  uint32_t ballot;
};

class WarpRun;

struct Lane {
  WarpRun* warp;
  unsigned number;      // within its warp
  unsigned warp_index;  // within its block
  Operation waits_at;   // kNone: it can continue
  uint8_t value_bytes;
  bool parity;  // selects one of the warp's two exchanges
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
// The values of all lanes, readable until the lane's next operation.
const Exchange& show(Lane& self, Operation operation, const void* value, size_t bytes,
                     const std::source_location& place);
void meet_block(Lane& self, const std::source_location& place);
// Lets other lanes run. Does nothing outside kernels.
void pause_at_atomic();
// Makes the launch throw KernelError unless `address` is a multiple of 16.
void check_aligned_to_16(const void* address);

// A kernel without its type, passed by launch().
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
