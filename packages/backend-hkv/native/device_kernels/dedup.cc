#include "device_kernels/dedup.h"

#include "device/algorithms.h"
#include "device/atomics.h"
#include "device_kernels/scalars.h"
#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

constexpr uint32_t kEmpty = 0xffffffffu;

// Which slot each id has; the slots get where ids occurred first.
struct TakesSlots {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* ids;
  int64_t* slot_of;  // (n): the inverse, not yet numbers of keys
  uint32_t* slots;   // (mask + 1)
  uint64_t mask;
  uint64_t count;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      const int64_t id = ids[i];
      const auto position = static_cast<uint32_t>(i);
      uint64_t slot = mix64(static_cast<uint64_t>(id)) & mask;
      for (;; slot = (slot + 1) & mask) {
        uint32_t other = device::atomic_load(slots + slot);
        if (other == kEmpty) other = device::atomic_cas(slots + slot, kEmpty, position);
        if (other == kEmpty) break;
        if (ids[other] != id) continue;
        if (other > position) device::atomic_min(slots + slot, position);
        break;
      }
      slot_of[i] = static_cast<int64_t>(slot);
    }
  }
};

struct FlagsFirsts {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* slot_of;
  const uint32_t* slots;
  uint32_t* is_first;  // (n)
  uint64_t count;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads())
      is_first[i] = slots[slot_of[i]] == i ? 1 : 0;
  }
};

struct NumbersKeys {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* ids;
  const uint32_t* slots;
  const uint32_t* numbers;  // (n): first occurrences before each position
  int64_t* inverse;         // in: slots; out: numbers of keys
  int64_t* keys;
  int64_t* num_keys;
  uint64_t count;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      const uint32_t first = slots[inverse[i]];
      const uint32_t number = numbers[first];
      inverse[i] = number;
      if (first == i) keys[number] = ids[i];
      if (i == count - 1) *num_keys = int64_t{numbers[i]} + (first == i ? 1 : 0);
    }
  }
};

}  // namespace

void dedup(Device& device, Stream stream, const Dedup& arguments) {
  if (arguments.count == 0) {
    device.fill(arguments.num_keys, 0, sizeof(int64_t), stream);
    return;
  }
  const auto count = static_cast<uint64_t>(arguments.count);
  uint64_t num_slots = 64;
  while (num_slots < 2 * count) num_slots *= 2;
  const Buffer slots = make_buffer<uint32_t>(device, num_slots, stream);
  const Buffer numbers = make_buffer<uint32_t>(device, count, stream);
  device.fill(slots.as<void>(), 0xff, slots.num_bytes(), stream);
  const device::Shape grid = grid_for(device, count);
  launch(device, grid, stream,
         TakesSlots{arguments.ids, arguments.inverse, slots.as<uint32_t>(), num_slots - 1, count});
  launch(device, grid, stream,
         FlagsFirsts{arguments.inverse, slots.as<uint32_t>(), numbers.as<uint32_t>(), count});
  device::exclusive_sum(device, stream, numbers.as<uint32_t>(), numbers.as<uint32_t>(), count);
  launch(device, grid, stream,
         NumbersKeys{arguments.ids, slots.as<uint32_t>(), numbers.as<uint32_t>(),
                     arguments.inverse, arguments.keys, arguments.num_keys, count});
}

}  // namespace sparring::device_kernels
