#include "emulator.h"

#include <numeric>
#include <string>
#include <vector>

#include "atomics.h"
#include "check.h"
#include "emulated_device.h"
#include "launch.h"

using namespace sparring::device;

namespace {

constexpr uint64_t seeds[] = {0, 1, 2, 3, 4};

// Writes the result of each operation for each warp.
struct Operations {
  static constexpr unsigned block_threads = 128;
  uint32_t* results;  // (warps, 32, 8) uint32, device
  SPARRING_DEVICE void operator()(const Block& block) const {
    const Warp warp = block.warp();
    const unsigned lane = warp.lane();
    uint32_t* mine = results + (block.warp_in_grid() * warp_lanes + lane) * 8;
    mine[0] = warp.ballot(lane % 3 == 0);
    mine[1] = warp.shuffle(lane * 10, lane + 1);
    mine[2] = warp.shuffle_xor(lane, 5u);
    mine[3] = warp.shuffle_up(lane, 2u);
    mine[4] = warp.shuffle_down(lane, 2u);
    mine[5] = warp.match(static_cast<int64_t>(lane % 4));
    mine[6] = warp.any(lane == 7) && !warp.all(lane == 7);
    uint32_t sum = lane;
    for (unsigned step = 16; step > 0; step /= 2) sum += warp.shuffle_xor(sum, step);
    mine[7] = sum;
  }
};

void warp_operations_have_the_results_of_cuda() {
  EmulatedDevice device;
  for (const uint64_t seed : seeds) {
    emulator::set_schedule({.seed = seed, .num_threads = 3});
    const unsigned num_blocks = 5;
    std::vector<uint32_t> results(num_blocks * 4 * warp_lanes * 8);
    launch(device, {num_blocks}, nullptr, Operations{results.data()});
    uint32_t thirds = 0;
    for (unsigned lane = 0; lane < warp_lanes; lane += 3) thirds |= 1u << lane;
    for (size_t i = 0; i < results.size(); i += 8) {
      const auto lane = static_cast<uint32_t>(i / 8 % warp_lanes);
      CHECK(results[i] == thirds);
      CHECK(results[i + 1] == (lane + 1) % 32 * 10);
      CHECK(results[i + 2] == (lane ^ 5u));
      CHECK(results[i + 3] == (lane < 2 ? lane : lane - 2));
      CHECK(results[i + 4] == (lane < 30 ? lane + 2 : lane));
      CHECK(results[i + 5] == 0x11111111u << lane % 4);
      CHECK(results[i + 6] == 1 && results[i + 7] == 31 * 16);
    }
  }
}

// Reverses blocks of numbers in shared memory.
struct Reverses {
  static constexpr unsigned block_threads = 256;
  uint32_t* values;
  SPARRING_DEVICE void operator()(const Block& block) const {
    uint32_t* shared = block.shared<uint32_t>();
    shared[block.thread()] = values[block.thread_in_grid()];
    block.sync();
    values[block.thread_in_grid()] = shared[block_threads - 1 - block.thread()];
  }
};

void warps_of_a_block_synchronize() {
  EmulatedDevice device;
  for (const uint64_t seed : seeds) {
    emulator::set_schedule({.seed = seed});
    std::vector<uint32_t> values(1024);
    std::iota(values.begin(), values.end(), 0u);
    launch(device, {4, 256 * 4}, nullptr, Reverses{values.data()});
    for (uint32_t i = 0; i < 1024; ++i) CHECK(values[i] == i / 256 * 256 + 255 - i % 256);
  }
}

// Sums with atomics, and with a lock for which lanes of one warp compete.
struct AddsUp {
  static constexpr unsigned block_threads = 64;
  uint64_t* sum;
  uint32_t* lock;
  uint32_t* guarded;
  float* real_sum;
  SPARRING_DEVICE void operator()(const Block& block) const {
    atomic_add(sum, block.thread_in_grid());
    atomic_add(real_sum, 1.0f);
    while (atomic_cas(lock, 0u, 1u) != 0) {
    }
    fence();
    atomic_store(guarded, atomic_load(guarded) + 1);
    fence();
    atomic_exchange(lock, 0u);
  }
};

void concurrent_atomics_lose_nothing() {
  EmulatedDevice device;
  for (const uint64_t seed : seeds) {
    emulator::set_schedule({.seed = seed, .num_threads = 4});
    uint64_t sum = 0;
    uint32_t lock = 0;
    uint32_t guarded = 0;
    float real_sum = 0;
    launch(device, {16}, nullptr, AddsUp{&sum, &lock, &guarded, &real_sum});
    CHECK(sum == 1023 * 512 && guarded == 1024 && real_sum == 1024.0f);
  }
}

struct Leaves {
  static constexpr unsigned block_threads = 64;
  uint32_t* result;
  SPARRING_DEVICE void operator()(const Block& block) const {
    if (block.thread() == 40) return;
    *result = block.warp().ballot(true);
  }
};
struct Parts {
  static constexpr unsigned block_threads = 32;
  uint32_t* result;
  SPARRING_DEVICE void operator()(const Block& block) const {
    if (block.thread() < 16) {
      *result = block.warp().ballot(true);
    } else {
      *result = block.warp().ballot(false);
    }
  }
};
struct SkipsBlockSync {
  static constexpr unsigned block_threads = 96;
  SPARRING_DEVICE void operator()(const Block& block) const {
    if (block.warp_index() != 1) block.sync();
  }
};
struct Misaligned {
  static constexpr unsigned block_threads = 32;
  const char* from;
  SPARRING_DEVICE void operator()(const Block& block) const {
    if (block.thread() == 3) load_16(from + 4);
  }
};

template <class Kernel>
std::string error_of(const Kernel& kernel) {
  EmulatedDevice device;
  try {
    launch(device, {3}, nullptr, kernel);
  } catch (const KernelError& error) {
    return error.what();
  }
  return "";
}

bool names(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) std::fprintf(stderr, "\"%s\"\n", text.c_str());
  return text.find(part) != std::string::npos;
}

void incorrect_kernels_are_reported_and_do_not_hang() {
  uint32_t result = 0;
  for (const uint64_t seed : seeds) {
    emulator::set_schedule({.seed = seed});
    const std::string left = error_of(Leaves{&result});
    CHECK(names(left, "Leaves") && names(left, "warp 1") && names(left, "lane 8 is at its end") &&
          names(left, "ballot (emulator_test.cc:"));
    CHECK(names(error_of(Parts{&result}), "all lanes must meet at one place"));
    CHECK(names(error_of(SkipsBlockSync{}), "all warps must meet at one block.sync"));
    alignas(16) const char bytes[64] = {};
    CHECK(names(error_of(Misaligned{bytes}), "16 bytes"));
    // The stacks are reused.
    warps_of_a_block_synchronize();
  }
}

// The order in which lanes run, as numbers from a counter.
struct Order {
  static constexpr unsigned block_threads = 64;
  uint32_t* next;
  uint32_t* order;
  SPARRING_DEVICE void operator()(const Block& block) const {
    order[block.thread_in_grid()] = atomic_add(next, 1u);
  }
};

void seeds_determine_orders() {
  EmulatedDevice device;
  std::vector<std::vector<uint32_t>> orders;
  for (const uint64_t seed : {0, 1, 2, 2}) {
    emulator::set_schedule({.seed = seed, .num_threads = 1});
    uint32_t next = 0;
    std::vector<uint32_t> order(256);
    launch(device, {4}, nullptr, Order{&next, order.data()});
    CHECK(next == 256);
    orders.push_back(order);
  }
  CHECK(orders[0] != orders[1] && orders[1] != orders[2] && orders[2] == orders[3]);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"warp operations have the results of CUDA", warp_operations_have_the_results_of_cuda},
      {"warps of a block synchronize", warps_of_a_block_synchronize},
      {"concurrent atomics lose nothing", concurrent_atomics_lose_nothing},
      {"incorrect kernels are reported and do not hang", incorrect_kernels_are_reported_and_do_not_hang},
      {"seeds determine orders", seeds_determine_orders},
  });
}
