#include "emulator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fiber.h"
#include "kernel_list.h"

namespace sparring::device::emulator {
namespace {

constexpr unsigned num_lanes = 32;

std::mutex schedule_mutex;
Schedule current_schedule;

// SplitMix64, as in table/hash.h: sufficient to draw random orders.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  void shuffle(std::vector<unsigned>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[next() % i]);
  }

 private:
  uint64_t state_;
};

std::vector<unsigned> numbers_below(unsigned count) {
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  return numbers;
}

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kNone: return "nothing";
    case Operation::kSync: return "sync";
    case Operation::kBallot: return "ballot";
    case Operation::kShuffle: return "shuffle";
    case Operation::kMatch: return "match";
    case Operation::kBlockSync: return "block.sync";
    case Operation::kDone: return "its end";
  }
  return "";
}

std::string where(const Lane& lane) {
  std::string text = "lane " + std::to_string(lane.number) + " is at " + name_of(lane.waits_at);
  if (lane.waits_at == Operation::kDone) return text;
  const std::string path = lane.place.file_name();
  return text + " (" + path.substr(path.find_last_of('/') + 1) + ":" +
         std::to_string(lane.place.line()) + ")";
}

bool is_same_place(const Lane& left, const Lane& right) {
  if (left.waits_at != right.waits_at) return false;
  if (left.waits_at == Operation::kDone) return true;
  // Equal locations have equal names, usually at the same address.
  const char* left_file = left.place.file_name();
  const char* right_file = right.place.file_name();
  return left.place.line() == right.place.line() && left.place.column() == right.place.column() &&
         left.value_bytes == right.value_bytes &&
         (left_file == right_file || std::strcmp(left_file, right_file) == 0);
}

class BlockRun;
// The block and the lane that this thread runs; null outside kernels.
thread_local BlockRun* running_block = nullptr;
thread_local Lane* running_lane = nullptr;

}  // namespace

class WarpRun {
 public:
  explicit WarpRun(unsigned index) : order_(numbers_below(num_lanes)) {
    for (unsigned i = 0; i < num_lanes; ++i) lanes[i] = {this, i, index, {}, 0, false, {}};
  }

  Lane lanes[num_lanes];
  Fiber fibers[num_lanes];
  Exchange exchanges[2];

  void start(void (*run)(void*)) {
    for (Lane& lane : lanes) {
      lane.waits_at = Operation::kNone;
      lane.parity = false;
      fibers[lane.number].start(run, &lane);
    }
    exchanges[0].ballot = exchanges[1].ballot = 0;
    std::iota(order_.begin(), order_.end(), 0u);
  }
  bool can_go_on() const {
    return std::any_of(lanes, lanes + num_lanes,
                       [](const Lane& lane) { return lane.waits_at == Operation::kNone; });
  }
  // The operation at which all lanes are, when none can continue.
  Operation state() const { return lanes[0].waits_at; }
  void pass() {
    exchanges[lanes[0].parity].ballot = 0;
    for (Lane& lane : lanes) lane.waits_at = Operation::kNone;
  }

  // Runs each lane until it waits or pauses; lets all continue if they wait at the same operation.
  void advance(Draw& draw, bool is_shuffled) {
    if (is_shuffled) draw.shuffle(order_);
    for (const unsigned number : order_) {
      Lane& lane = lanes[number];
      if (lane.waits_at != Operation::kNone) continue;
      running_lane = &lane;
      fibers[number].resume();
      running_lane = nullptr;
      if (fibers[number].is_done()) lane.waits_at = Operation::kDone;
    }
    if (can_go_on()) return;
    for (const Lane& lane : lanes) {
      if (!is_same_place(lane, lanes[0])) {
        throw KernelError("warp " + std::to_string(lane.warp_index) +
                          ": all lanes must meet at one place, but " + where(lanes[0]) + " and " +
                          where(lane));
      }
    }
    if (state() != Operation::kBlockSync && state() != Operation::kDone) pass();
  }

 private:
  std::vector<unsigned> order_;
};

namespace {

// Runs one block at a time: its warps, their stacks, its shared memory.
class BlockRun {
 public:
  void run(const Task& task, unsigned index, const Schedule& schedule) {
    while (warps_.size() < task.block_threads / num_lanes)
      warps_.push_back(std::make_unique<WarpRun>(static_cast<unsigned>(warps_.size())));
    const unsigned num_warps = task.block_threads / num_lanes;
    task_ = &task;
    is_shuffled_ = schedule.seed != 0;
    draw_ = Draw(schedule.seed * 0x2545f4914f6cdd1du + index);
    failure_.clear();
    // Of exactly the requested size, so that AddressSanitizer detects accesses beyond it.
    struct Free {
      void operator()(void* memory) const { ::operator delete(memory, std::align_val_t(16)); }
    };
    const std::unique_ptr<void, Free> shared(
        ::operator new(task.shared_bytes, std::align_val_t(16)));
    std::memset(shared.get(), 0xa5, task.shared_bytes);
    view_ = {index, task.num_blocks, task.block_threads, shared.get()};
    for (unsigned i = 0; i < num_warps; ++i) warps_[i]->start(&BlockRun::run_lane);
    try {
      running_block = this;
      run_warps(num_warps);
      running_block = nullptr;
    } catch (const KernelError& error) {
      running_block = nullptr;
      running_lane = nullptr;
      throw KernelError("kernel " + plain_name(task.name) + ", block " + std::to_string(index) +
                        ", " + error.what());
    }
  }

  // Called by a lane.
  void pause_sometimes() {
    if (is_shuffled_ ? draw_.next() % 8 != 0 : ++num_atomics_ % 64 != 0) return;
    Lane* self = running_lane;
    self->warp->fibers[self->number].pause();
  }
  // The text must be static: objects on a lane's stack are never destroyed.
  [[noreturn]] void fail(const char* message) {
    failure_ = message;
    for (;;) running_lane->warp->fibers[running_lane->number].pause();
  }

 private:
  static void run_lane(void* argument) {
    Lane& lane = *static_cast<Lane*>(argument);
    const BlockRun& block = *running_block;
    block.task_->run(block.task_->kernel, lane, block.view_);
  }

  void run_warps(unsigned num_warps) {
    std::vector<unsigned> order = numbers_below(num_warps);
    for (;;) {
      if (is_shuffled_) draw_.shuffle(order);
      bool has_advanced = false;
      for (const unsigned i : order) {
        const unsigned turns = is_shuffled_ ? 1 + draw_.next() % 4 : 1;
        for (unsigned turn = 0; turn < turns && warps_[i]->can_go_on(); ++turn) {
          warps_[i]->advance(draw_, is_shuffled_);
          has_advanced = true;
          if (!failure_.empty()) throw KernelError(failure_);
        }
      }
      if (has_advanced) continue;
      const Lane& first = warps_[0]->lanes[0];
      for (unsigned i = 1; i < num_warps; ++i) {
        if (!is_same_place(warps_[i]->lanes[0], first)) {
          throw KernelError("all warps must meet at one block.sync, but of warp 0 " +
                            where(first) + " and of warp " + std::to_string(i) + " " +
                            where(warps_[i]->lanes[0]));
        }
      }
      if (first.waits_at == Operation::kDone) return;
      for (unsigned i = 0; i < num_warps; ++i) warps_[i]->pass();
    }
  }

  std::vector<std::unique_ptr<WarpRun>> warps_;
  const Task* task_ = nullptr;
  BlockView view_{};
  bool is_shuffled_ = false;
  Draw draw_{0};
  uint64_t num_atomics_ = 0;
  std::string failure_;
};

// Creating stacks costs more than running small kernels, so they are reused.
class BlockRuns {
 public:
  std::unique_ptr<BlockRun> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<BlockRun>();
    auto run = std::move(free_.back());
    free_.pop_back();
    return run;
  }
  void give_back(std::unique_ptr<BlockRun> run) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(run));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<BlockRun>> free_;
};

BlockRuns& block_runs() {
  static BlockRuns runs;
  return runs;
}

void wait_at(Lane& self, Operation operation, const std::source_location& place, size_t bytes) {
  self.waits_at = operation;
  self.value_bytes = static_cast<uint8_t>(bytes);
  self.place = place;
  self.warp->fibers[self.number].pause();
}

}  // namespace

void set_schedule(const Schedule& schedule) {
  const std::lock_guard<std::mutex> lock(schedule_mutex);
  current_schedule = schedule;
}

Schedule schedule() {
  const std::lock_guard<std::mutex> lock(schedule_mutex);
  return current_schedule;
}

void meet(Lane& self, Operation operation, const std::source_location& place) {
  self.parity = !self.parity;
  wait_at(self, operation, place, 0);
}

uint32_t ballot(Lane& self, bool holds, const std::source_location& place) {
  Exchange& exchange = self.warp->exchanges[self.parity];
  if (holds) exchange.ballot |= uint32_t{1} << self.number;
  meet(self, Operation::kBallot, place);
  return exchange.ballot;
}

const Exchange& show(Lane& self, Operation operation, const void* value, size_t bytes,
                     const std::source_location& place) {
  Exchange& exchange = self.warp->exchanges[self.parity];
  std::memcpy(exchange.values[self.number], value, bytes);
  self.parity = !self.parity;
  wait_at(self, operation, place, bytes);
  return exchange;
}

void meet_block(Lane& self, const std::source_location& place) {
  wait_at(self, Operation::kBlockSync, place, 0);
}

void pause_at_atomic() {
  if (running_lane != nullptr) running_block->pause_sometimes();
}

void check_aligned_to_16(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 == 0) return;
  const char* message = "an access of 16 bytes at an address that is not a multiple of 16";
  if (running_lane == nullptr) throw KernelError(message);
  running_block->fail(message);
}

void run(const Task& task) {
  if (task.num_blocks == 0 || task.block_threads == 0 || task.block_threads % num_lanes != 0 ||
      task.block_threads > 1024) {
    throw KernelError("kernel " + plain_name(task.name) + " was launched with " +
                      std::to_string(task.num_blocks) + " blocks of " +
                      std::to_string(task.block_threads) +
                      " threads; a launch has at least one block of 32 to 1024 threads, a multiple of 32");
  }
  const Schedule as = schedule();
  std::vector<unsigned> order = numbers_below(task.num_blocks);
  if (as.seed != 0) Draw(as.seed).shuffle(order);

  std::atomic<unsigned> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run_blocks = [&] {
    auto block = block_runs().take();
    try {
      for (unsigned i; (i = next.fetch_add(1)) < task.num_blocks;) block->run(task, order[i], as);
    } catch (...) {
      next = task.num_blocks;  // stops the other threads too
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    block_runs().give_back(std::move(block));
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::min(as.num_threads, task.num_blocks); ++i)
    threads.emplace_back(run_blocks);
  run_blocks();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sparring::device::emulator
