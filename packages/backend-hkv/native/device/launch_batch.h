// Launches of several like pieces of work, as one: what N tables do in a step takes as many launches
// as what one of them does.
//
//   line 0   Locate │ Describe │ Update          A line is what one table launches, in its order.
//   line 1   Locate │ Describe │ Update          flush: fronts that are of one kernel go together,
//   line 2   Locate │ Sort ⇒ flush …             a range of blocks each.
//
// While a batch lives, launches of its thread are kept in it, where their kernel says
// `is_batched` and they are for its device and stream. Everything else that is put on a stream is put
// there behind them: it flushes. Memory that is freed meanwhile is freed behind them too.
#ifndef SPARRING_HKV_DEVICE_LAUNCH_BATCH_H_
#define SPARRING_HKV_DEVICE_LAUNCH_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "memory.h"

namespace sparring::device {

struct Shape {
  unsigned num_blocks;  // at least one
  size_t shared_bytes = 0;
};

class LaunchBatch {
 public:
  // What launch.h knows of a kernel.
  struct Kind {
    size_t kernel_bytes;
    void (*launch_one)(Device& device, Stream stream, const Shape& shape, const void* kernel);
    // kernels (count) and first_blocks (count + 1) uint32, device.
    void (*launch_all)(Device& device, Stream stream, unsigned num_blocks, const void* kernels,
                       const uint32_t* first_blocks, uint32_t count);
  };

  // Becomes the calling thread's, which has none.
  LaunchBatch(Device& device, Stream stream);
  // REQUIRES: it was flushed, or what is left shall not be done.
  ~LaunchBatch();
  LaunchBatch(const LaunchBatch&) = delete;
  LaunchBatch& operator=(const LaunchBatch&) = delete;

  // What follows depends on nothing in other lines.
  void begin_line() { lines_.emplace_back(); }
  // Throws DeviceError, OutOfDeviceMemory; what was not launched then is forgotten.
  void flush();

  void add(const Kind& kind, const Shape& shape, const void* kernel);

  // The calling thread's, if it takes launches for these.
  static LaunchBatch* current(const Device& device, Stream stream);
  static void flush_current();
  // Returns whether it will free the memory.
  static bool takes_free(Device& device, void* memory, size_t num_bytes, Stream stream,
                         Lifetime lifetime);

 private:
  struct Entry {
    const Kind* kind;
    Shape shape;
    std::vector<std::byte> kernel;
  };
  using Group = std::vector<Entry>;
  struct Freed {
    void* memory;
    size_t num_bytes;
    Stream stream;
    Lifetime lifetime;
  };

  std::vector<Group> take_groups();
  void launch_groups(const std::vector<Group>& groups);
  void free_all();

  static thread_local LaunchBatch* current_;

  Device& device_;
  Stream stream_;
  std::deque<std::deque<Entry>> lines_;
  std::vector<Freed> freed_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_LAUNCH_BATCH_H_
