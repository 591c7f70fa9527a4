#include "device_kernels/route.h"

#include "device/algorithms.h"
#include "device_kernels/scalars.h"
#include "device_kernels/segments.h"
#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

struct Partitions {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* keys;
  uint16_t* partitions;
  uint64_t count;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads())
      partitions[i] = static_cast<uint16_t>(partition_of(keys[i]));
  }
};

struct Owners {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* keys;
  const int32_t* owners;
  uint32_t* owner_of;
  uint32_t* places;
  uint64_t count;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      owner_of[i] = static_cast<uint32_t>(owners[partition_of(keys[i])]);
      places[i] = static_cast<uint32_t>(i);
    }
  }
};

struct Widens {
  static constexpr unsigned block_threads = kBlockThreads;
  const uint32_t* from;
  int64_t* to;
  uint64_t count;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) to[i] = from[i];
  }
};

}  // namespace

void partition(Device& device, Stream stream, const Partition& arguments) {
  if (arguments.count == 0) return;
  const auto count = static_cast<uint64_t>(arguments.count);
  launch(device, grid_for(device, count), stream,
         Partitions{arguments.keys, arguments.partitions, count});
}

void route(Device& device, Stream stream, const Route& arguments) {
  const auto count = static_cast<uint64_t>(arguments.count);
  const auto world_size = static_cast<uint64_t>(arguments.world_size);
  const Buffer owner_of = make_buffer<uint32_t>(device, count, stream);
  const Buffer places = make_buffer<uint32_t>(device, count, stream);
  const Buffer sorted_owners = make_buffer<uint32_t>(device, count, stream);
  const Buffer sorted_places = make_buffer<uint32_t>(device, count, stream);
  const device::Shape grid = grid_for(device, count);
  if (count > 0) {
    launch(device, grid, stream,
           Owners{arguments.keys, arguments.owners, owner_of.as<uint32_t>(), places.as<uint32_t>(),
                  count});
    device::sort_pairs(device, stream, owner_of.as<uint32_t>(), places.as<uint32_t>(),
                       sorted_owners.as<uint32_t>(), sorted_places.as<uint32_t>(), count,
                       {0, num_bits_below(world_size)});
    launch(device, grid, stream, Widens{sorted_places.as<uint32_t>(), arguments.order, count});
  }
  find_starts(device, stream,
              Starts{sorted_owners.as<uint32_t>(), count, world_size, arguments.offsets});
}

}  // namespace sparring::device_kernels
