// Combines launches of similar work: a step of N tables takes as many launches as a step of one
// table.
//
//   line 0   Locate │ Describe │ Update          A line contains the launches of one table, in order.
//   line 1   Locate │ Describe │ Update          flush: if the first launches of several lines use the
//   line 2   Locate │ Sort ⇒ flush …             same kernel, they become one, with a range of blocks each.
//
// While a batch exists, launches of its thread on its device and stream are added to it if the
// kernel has `is_batched`. Any other work on the stream flushes the batch first. Memory that is
// freed meanwhile is freed after the flush, too.
//
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
  // The properties of a kernel type, from launch.h.
  struct Kind {
    size_t kernel_bytes;
    void (*launch_one)(Device& device, Stream stream, const Shape& shape, const void* kernel);
    // kernels (count) and first_blocks (count + 1) uint32, device.
    void (*launch_all)(Device& device, Stream stream, unsigned num_blocks, const void* kernels,
                       const uint32_t* first_blocks, uint32_t count);
  };

  // Becomes the batch of the calling thread, which must have none.
  LaunchBatch(Device& device, Stream stream);
  // REQUIRES: the batch was flushed; otherwise its remaining launches are discarded.
  ~LaunchBatch();
  LaunchBatch(const LaunchBatch&) = delete;
  LaunchBatch& operator=(const LaunchBatch&) = delete;

  // Starts a line, which must not depend on other lines.
  void begin_line() { lines_.emplace_back(); }
  // Throws DeviceError, OutOfDeviceMemory; launches that were not made are discarded.
  void flush();

  void add(const Kind& kind, const Shape& shape, const void* kernel);

  // The batch of the calling thread if it accepts launches for these, else NULL.
  static LaunchBatch* current(const Device& device, Stream stream);
  static void flush_current();
  // Returns whether the batch will free the memory.
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
