// How kernels of the device table look for keys: four keys a warp, eight lanes a
// key ("a tile"). A lane reads 16 of the 128 digests, so a tile reads them at
// once; lanes whose digests agree read the entries; the tile then moves the row.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_LOCATE_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_LOCATE_H_

#include <cstdint>

#include "device_views.h"

namespace sparring::hkv {

inline constexpr unsigned kTileLanes = 8;
inline constexpr unsigned kTiles = device::warp_lanes / kTileLanes;
inline constexpr unsigned kBlockThreads = 128;

struct DeviceLocation {
  uint32_t row = kNoDeviceRow;  // kNoDeviceRow: the key is absent
  uint32_t slot = 0;
  DeviceBucket bucket{};
};

// The key that a tile of the calling warp is about.
struct TileKey {
  uint64_t position;  // in the call
  bool is_wanted;     // else beyond the end of the call
  int64_t key;
  unsigned lane;  // of this thread in the tile
};

// Calls body(TileKey) for all positions of [0, count), the whole warp together.
template <class Body>
SPARRING_DEVICE void for_each_key(const device::Block& block, const int64_t* keys, uint64_t count,
                                  const Body& body) {
  const unsigned lane = block.warp().lane();
  for (uint64_t first = block.warp_in_grid() * kTiles; first < count;
       first += block.grid_warps() * kTiles) {
    const uint64_t position = first + lane / kTileLanes;
    const bool is_wanted = position < count;
    body(TileKey{position, is_wanted, is_wanted ? keys[position] : 0, lane % kTileLanes});
  }
}

// Each tile looks for its key; all lanes of a tile get the answer.
// All lanes of the warp call this together.
SPARRING_DEVICE DeviceLocation locate_key(const device::Warp& warp, const DeviceIndexView& index,
                                          const TileKey& tile) {
  const unsigned first = warp.lane() - tile.lane;
  const uint64_t hash = index.hash(tile.key);
  const uint32_t pattern = device::repeated_byte(digest_of(hash));
  DeviceLocation found;
  DeviceBucket bucket{};
  bool is_looking = tile.is_wanted;
  if (is_looking) bucket = index.heads.at(index.head_of(hash));
  while (warp.any(is_looking)) {
    uint32_t row = kNoDeviceRow;
    uint32_t slot = 0;
    if (is_looking) {
      const device::Vector16 digests = device::load_16(bucket.digests + tile.lane * 16);
      for (uint32_t word = 0; word < 4; ++word) {
        uint32_t equal = device::equal_bytes(digests.words[word], pattern);
        while (equal != 0) {
          const uint32_t byte = device::lowest_one(equal) / 8;
          equal &= ~(uint32_t{0xff} << (8 * byte));
          const uint32_t candidate = tile.lane * 16 + word * 4 + byte;
          const DeviceEntry entry = load_entry(bucket.entries + candidate);
          if (entry.key == tile.key) {
            row = entry.row;
            slot = candidate;
          }
        }
      }
    }
    const uint32_t winners = (warp.ballot(row != kNoDeviceRow) >> first) & 0xffu;
    const unsigned winner = first + (winners != 0 ? device::lowest_one(winners) : 0);
    row = warp.shuffle(row, winner);
    slot = warp.shuffle(slot, winner);
    if (!is_looking) continue;
    if (winners != 0) {
      found = {row, slot, bucket};
      is_looking = false;
    } else {
      const uint32_t link = index.has_chains ? *bucket.link : 0;
      is_looking = link != 0;
      if (is_looking) bucket = index.overflow.at(link - 1);
    }
  }
  return found;
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_LOCATE_H_
