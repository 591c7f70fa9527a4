// Lookup of keys by kernels of the device table. A warp has 32 keys, one per lane. Eight lanes ("a
// tile") search a bucket, 16 of its 128 digests each, so that four keys are searched at once. The
// eight
// groups of four keys are processed in two halves:
//
//   lanes      0 ... 7 | 8 ... 15 | 16 ... 23 | 24 ... 31
//   group 0    key 0   | key 1    | key 2     | key 3        the digests of groups 0 to 3 are loaded
//   group 1    key 4   | key 5    | key 6     | key 7        before any of them is compared, and so
//   ...                                                      are their entries
//
// Therefore each lane has four loads of 16 bytes in flight, and each hash is computed once.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_LOCATE_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_LOCATE_H_

#include <cstdint>

#include "device_views.h"

namespace sparring::hkv {

inline constexpr unsigned kTileLanes = 8;
inline constexpr unsigned kTiles = device::warp_lanes / kTileLanes;
inline constexpr unsigned kGroupsInFlight = 4;
inline constexpr unsigned kHalfKeys = kTiles * kGroupsInFlight;
inline constexpr unsigned kBlockThreads = 128;

// The key of one lane.
struct LaneKey {
  uint64_t position;  // in the call
  bool is_wanted;     // false beyond the end of the call
  int64_t key;
};

// Calls body(LaneKey, num_keys) for all positions of [0, count), with the whole warp together;
// the first `num_keys` lanes have keys.
template <class Body>
SPARRING_DEVICE void for_each_key(const device::Block& block, const int64_t* keys, uint64_t count,
                                  const Body& body) {
  const unsigned lane = block.warp().lane();
  for (uint64_t first = block.warp_in_grid() * device::warp_lanes; first < count;
       first += block.grid_warps() * device::warp_lanes) {
    const uint64_t position = first + lane;
    const bool is_wanted = position < count;
    const uint64_t left = count - first;
    body(LaneKey{position, is_wanted, is_wanted ? keys[position] : 0},
         left < device::warp_lanes ? static_cast<unsigned>(left) : device::warp_lanes);
  }
}

struct DeviceLocation {
  uint32_t row = kNoDeviceRow;  // kNoDeviceRow: the key is missing
  uint32_t slot = 0;            // kHasSlot only
  uint32_t link = 0;            // to the overflow bucket that contains it; 0: the head does
};

// One bit for each byte of a byte mask.
SPARRING_DEVICE uint32_t bits_of_bytes(uint32_t bytes) {
  return (bytes & 0x01010101u) * 0x01020408u >> 24 & 0xfu;
}

template <bool kHasSlot>
class Locator {
 public:
  SPARRING_DEVICE Locator(const device::Warp& warp, const DeviceIndexView& index)
      : warp_(warp), index_(index) {}

  // Each lane gets the result for its key. All lanes of the warp must call this together.
  SPARRING_DEVICE DeviceLocation locate(const LaneKey& lane_key) {
    DeviceLocation found;
    const uint64_t hash = index_.hash(lane_key.key);
    key_ = lane_key.key;
    pattern_ = device::repeated_byte(digest_of(hash));
    DeviceBucket bucket{};
    bool is_looking = lane_key.is_wanted;
    if (is_looking) bucket = index_.heads.at(index_.head_of(hash));
    uint32_t link = 0;
    for (uint32_t looking = warp_.ballot(is_looking); looking != 0;
         looking = warp_.ballot(is_looking)) {
      digests_ = bucket.digests;
      entries_ = bucket.entries;
      SPARRING_NO_UNROLL
      for (unsigned first = 0; first < device::warp_lanes; first += kHalfKeys) {
        if ((looking >> first & ((1u << kHalfKeys) - 1)) != 0) look(first, looking, link, found);
      }
      if (!is_looking) continue;
      link = index_.has_chains && found.row == kNoDeviceRow ? *bucket.link : 0;
      is_looking = link != 0;
      if (is_looking) bucket = index_.overflow.at(link - 1);
    }
    return found;
  }

 private:
  // The state of a tile's search for its key.
  struct Search {
    device::Vector16 digests;
    uint32_t candidates;  // of this lane's 16 slots
    const DeviceEntry* entries;
    int64_t key;
    DeviceEntry entry;  // of the first candidate
    uint32_t row;
    uint32_t slot;
  };

  // Searches for the keys of lanes [first, first + kHalfKeys).
  SPARRING_DEVICE void look(unsigned first, uint32_t looking, uint32_t link,
                            DeviceLocation& found) const {
    const unsigned tile = warp_.lane() / kTileLanes;
    const unsigned lane = warp_.lane() % kTileLanes;
    Search searches[kGroupsInFlight];
    SPARRING_UNROLL
    for (unsigned k = 0; k < kGroupsInFlight; ++k) {
      const unsigned owner = first + k * kTiles + tile;
      const uint8_t* const digests = warp_.shuffle(digests_, owner);
      searches[k].digests = {};
      if ((looking >> owner & 1u) != 0) {
        searches[k].digests = device::load_16(digests + lane * 16);
      }
    }
    SPARRING_UNROLL
    for (unsigned k = 0; k < kGroupsInFlight; ++k) {
      const unsigned owner = first + k * kTiles + tile;
      Search& search = searches[k];
      const uint32_t pattern = warp_.shuffle(pattern_, owner);
      search.entries = warp_.shuffle(entries_, owner);
      search.key = warp_.shuffle(key_, owner);
      search.candidates = 0;
      SPARRING_UNROLL
      for (unsigned word = 0; word < 4; ++word) {
        const uint32_t equal = device::equal_bytes(search.digests.words[word], pattern);
        search.candidates |= bits_of_bytes(equal) << (4 * word);
      }
      search.entry = {};
      search.slot = 0;
      if (search.candidates != 0) {
        search.slot = lane * 16 + device::lowest_one(search.candidates);
        search.entry = load_entry(search.entries + search.slot);
      }
    }
    SPARRING_UNROLL
    for (unsigned k = 0; k < kGroupsInFlight; ++k) {
      confirm(searches[k], lane);
      const uint32_t winners = warp_.ballot(searches[k].row != kNoDeviceRow);
      // The result for this lane's key, if it belongs to this group.
      const unsigned asked = warp_.lane() % kTiles * kTileLanes;
      const uint32_t own = winners >> asked & ((1u << kTileLanes) - 1);
      const unsigned winner = asked + (own != 0 ? device::lowest_one(own) : 0);
      const uint32_t row = warp_.shuffle(searches[k].row, winner);
      uint32_t slot = 0;
      if constexpr (kHasSlot) slot = warp_.shuffle(searches[k].slot, winner);
      const bool is_of_group = warp_.lane() / kTiles == first / kTiles + k;
      if (is_of_group && own != 0) found = {row, slot, link};
    }
  }

  // Digests may be equal by chance: half a candidate more on average in a full bucket.
  SPARRING_DEVICE void confirm(Search& search, unsigned lane) const {
    search.row = kNoDeviceRow;
    while (search.candidates != 0) {
      if (search.entry.key == search.key) {
        search.row = search.entry.row;
        return;
      }
      search.candidates &= search.candidates - 1;
      if (search.candidates == 0) return;
      search.slot = lane * 16 + device::lowest_one(search.candidates);
      search.entry = load_entry(search.entries + search.slot);
    }
  }

  const device::Warp warp_;
  const DeviceIndexView& index_;
  // The key of this lane.
  int64_t key_ = 0;
  uint32_t pattern_ = 0;
  const uint8_t* digests_ = nullptr;
  const DeviceEntry* entries_ = nullptr;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_LOCATE_H_
