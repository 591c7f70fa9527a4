#include "device_kernels/dedup.h"

#include "device/algorithms.h"
#include "device/atomics.h"
#include "device_kernels/scalars.h"
#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

constexpr uint32_t kEmpty = 0xffffffffu;

// Segments of the concatenated ids of several tables.
struct Segments {
  const int64_t* offsets;  // (count + 1), or NULL: one segment
  int64_t count;

  // The segment of position i: the last one that starts at or before it. Empty segments have no
  // position.
  SPARRING_DEVICE int64_t of(int64_t i) const {
    int64_t low = 0;
    int64_t high = count;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (offsets[middle] <= i) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// Assigns a slot to each id; each slot gets the position of the first occurrence of its id.
struct TakesSlots {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* ids;
  int64_t* slot_of;  // (n): the inverse, with slots instead of key numbers
  uint32_t* slots;   // (mask + 1)
  uint64_t mask;
  uint64_t count;
  Segments segments;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      const int64_t id = ids[i];
      const auto position = static_cast<uint32_t>(i);
      uint64_t begin = 0;
      uint64_t end = count;
      uint64_t slot = mix64(static_cast<uint64_t>(id));
      if (segments.offsets != nullptr) {
        const int64_t segment = segments.of(static_cast<int64_t>(i));
        begin = static_cast<uint64_t>(segments.offsets[segment]);
        end = static_cast<uint64_t>(segments.offsets[segment + 1]);
        slot = mix64(slot + static_cast<uint64_t>(segment));
      }
      slot &= mask;
      for (;; slot = (slot + 1) & mask) {
        uint32_t other = device::atomic_load(slots + slot);
        if (other == kEmpty) other = device::atomic_cas(slots + slot, kEmpty, position);
        if (other == kEmpty) break;
        if (ids[other] != id || other < begin || other >= end) continue;
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
  const uint32_t* numbers;  // (n): number of first occurrences before each position
  int64_t* inverse;         // input: slots; output: key numbers
  int64_t* keys;
  int64_t* num_keys;
  uint64_t count;
  Segments segments;
  int64_t* key_offsets;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      const uint32_t first = slots[inverse[i]];
      const uint32_t number = numbers[first];
      inverse[i] = number;
      if (first == i) keys[number] = ids[i];
      if (i != count - 1) continue;
      const int64_t total = int64_t{numbers[i]} + (first == i ? 1 : 0);
      if (key_offsets == nullptr) {
        *num_keys = total;
      } else {
        key_offsets[segments.count] = total;
      }
      for (int64_t segment = segments.count; key_offsets != nullptr && segment-- > 0;) {
        const auto begin = static_cast<uint64_t>(segments.offsets[segment]);
        key_offsets[segment] = begin < count ? int64_t{numbers[begin]} : total;
      }
    }
  }
};

}  // namespace

void dedup(Device& device, Stream stream, const Dedup& arguments) {
  if (arguments.count == 0) {
    if (arguments.key_offsets == nullptr)
      return device.fill(arguments.num_keys, 0, sizeof(int64_t), stream);
    const auto num_offsets = static_cast<size_t>(arguments.num_segments) + 1;
    return device.fill(arguments.key_offsets, 0, num_offsets * sizeof(int64_t), stream);
  }
  const auto count = static_cast<uint64_t>(arguments.count);
  const Segments segments{arguments.offsets, arguments.num_segments};
  uint64_t num_slots = 64;
  while (num_slots < 2 * count) num_slots *= 2;
  const Buffer slots = make_buffer<uint32_t>(device, num_slots, stream);
  const Buffer numbers = make_buffer<uint32_t>(device, count, stream);
  device.fill(slots.as<void>(), 0xff, slots.num_bytes(), stream);
  const device::Shape grid = grid_for(device, count);
  launch(device, grid, stream,
         TakesSlots{arguments.ids, arguments.inverse, slots.as<uint32_t>(), num_slots - 1, count,
                    segments});
  launch(device, grid, stream,
         FlagsFirsts{arguments.inverse, slots.as<uint32_t>(), numbers.as<uint32_t>(), count});
  device::exclusive_sum(device, stream, numbers.as<uint32_t>(), numbers.as<uint32_t>(), count);
  launch(device, grid, stream,
         NumbersKeys{arguments.ids, slots.as<uint32_t>(), numbers.as<uint32_t>(),
                     arguments.inverse, arguments.keys, arguments.num_keys, count, segments,
                     arguments.key_offsets});
}

}  // namespace sparring::device_kernels
