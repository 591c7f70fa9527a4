// Parts of a warp that process one item each, and grids that fit the device.
#ifndef SPARRING_HKV_DEVICE_KERNELS_TILE_H_
#define SPARRING_HKV_DEVICE_KERNELS_TILE_H_

#include <cstdint>

#include "device/launch.h"
#include "device/memory.h"
#include "device/warp.h"

namespace sparring::device_kernels {

using device::Block;
using device::Buffer;
using device::Device;
using device::Stream;
using device::Warp;
using device::make_buffer;

inline constexpr unsigned kBlockThreads = 256;

// kLanes of a warp, a power of two. It has the operations of the warp: all tiles of the
// warp must execute them at one location in the code.
template <unsigned kLanes>
class Tile {
 public:
  static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
  static constexpr unsigned num_lanes = kLanes;

  SPARRING_DEVICE explicit Tile(const Block& block) : warp_(block.warp()) {}
  SPARRING_DEVICE unsigned lane() const { return warp_.lane() % kLanes; }
  // The number of the tile in the grid, and the number of tiles.
  SPARRING_DEVICE static uint64_t in_grid(const Block& block) {
    return block.thread_in_grid() / kLanes;
  }
  SPARRING_DEVICE static uint64_t count(const Block& block) { return block.grid_threads() / kLanes; }

  // Makes earlier memory accesses of the lanes of the warp visible to all of them.
  SPARRING_DEVICE void sync() const { warp_.sync(); }

  // Whether the condition is true in any lane of the whole warp.
  SPARRING_DEVICE bool any_of_warp(bool holds) const { return warp_.any(holds); }
  // The value of lane `source` of the tile.
  template <class T>
  SPARRING_DEVICE T shuffle(T value, unsigned source) const {
    return warp_.shuffle(value, warp_.lane() / kLanes * kLanes + source);
  }

  // The sum over the lanes by halves: lane l and lane l + 16, l + 8, ...; all lanes get it.
  template <class T>
  SPARRING_DEVICE T sum_in_halves(T value) const {
    for (unsigned half = kLanes / 2; half > 0; half /= 2)
      value = value + warp_.shuffle_down(value, half);
    return warp_.shuffle(value, warp_.lane() / kLanes * kLanes);
  }

 private:
  Warp warp_;
};

// Number of rounds that all tiles of the grid execute, so that the tiles of a warp stay
// together even if some have nothing left to do.
SPARRING_DEVICE uint64_t rounds_for(uint64_t count, uint64_t num_tiles) {
  return (count + num_tiles - 1) / num_tiles;
}

// A grid for `num_threads`, limited to the number of blocks that keep the device busy.
inline device::Shape grid_for(const Device& device, uint64_t num_threads,
                              unsigned block_threads = kBlockThreads) {
  return {device::blocks_for(num_threads, block_threads, 32 * device.num_multiprocessors())};
}

// Calls body.template operator()<lanes>() with the narrowest tile that covers `num_words` in
// one round, at most a warp.
template <class Body>
void with_tile(int64_t num_words, const Body& body) {
  if (num_words <= 4) return body.template operator()<4>();
  if (num_words <= 8) return body.template operator()<8>();
  if (num_words <= 16) return body.template operator()<16>();
  return body.template operator()<32>();
}

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_TILE_H_
