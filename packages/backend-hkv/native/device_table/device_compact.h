// The positions of selected flags, in order. Like select_flagged of algorithms.h, but with memory
// that was allocated before, because here nothing may fail.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_COMPACT_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_COMPACT_H_

#include <cstdint>

#include "device/launch.h"
#include "device_locate.h"

namespace sparring::hkv {

// Number of flags that one warp counts.
inline constexpr uint64_t kCompactPiece = 1024;
inline uint64_t num_compact_pieces(uint64_t count) {
  return (count + kCompactPiece - 1) / kCompactPiece;
}

// Selects flags by value: bit v says whether value v is selected.
struct WantedFlags {
  const uint8_t* flags;  // (count) device, each below 8
  uint64_t count;
  uint8_t values;

  SPARRING_DEVICE bool has(uint64_t i) const { return i < count && (values >> flags[i] & 1) != 0; }
};

struct CountFlags {
  static constexpr unsigned block_threads = kBlockThreads;
  WantedFlags wanted;
  uint32_t* sums;  // out (pieces) device

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    for (uint64_t piece = block.warp_in_grid(); piece * kCompactPiece < wanted.count;
         piece += block.grid_warps()) {
      uint32_t sum = 0;
      for (uint64_t at = 0; at < kCompactPiece; at += device::warp_lanes) {
        const uint64_t i = piece * kCompactPiece + at + warp.lane();
        sum += device::num_ones(warp.ballot(wanted.has(i)));
      }
      if (warp.lane() == 0) sums[piece] = sum;
    }
  }
};

// Exclusive prefix sums in place, and their total. One warp.
struct SumPieces {
  static constexpr unsigned block_threads = device::warp_lanes;
  uint32_t* sums;  // (num_pieces) device
  uint64_t num_pieces;
  uint32_t* total;  // out (1) device

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    uint32_t before = 0;
    for (uint64_t first = 0; first < num_pieces; first += device::warp_lanes) {
      const uint64_t i = first + warp.lane();
      const uint32_t own = i < num_pieces ? sums[i] : 0;
      uint32_t sum = own;
      for (unsigned step = 1; step < device::warp_lanes; step *= 2) {
        const uint32_t other = warp.shuffle_up(sum, step);
        if (warp.lane() >= step) sum += other;
      }
      if (i < num_pieces) sums[i] = before + sum - own;
      before += warp.shuffle(sum, device::warp_lanes - 1);
    }
    if (warp.lane() == 0) *total = before;
  }
};

struct WritePositions {
  static constexpr unsigned block_threads = kBlockThreads;
  WantedFlags wanted;
  const uint32_t* sums;  // (pieces) device
  uint32_t* positions;   // out (total) device

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    const device::Warp warp = block.warp();
    for (uint64_t piece = block.warp_in_grid(); piece * kCompactPiece < wanted.count;
         piece += block.grid_warps()) {
      uint32_t place = sums[piece];
      for (uint64_t at = 0; at < kCompactPiece; at += device::warp_lanes) {
        const uint64_t i = piece * kCompactPiece + at + warp.lane();
        const bool is_set = wanted.has(i);
        const uint32_t lanes = warp.ballot(is_set);
        if (is_set) {
          positions[place + device::num_ones(lanes & device::lanes_below(warp.lane()))] =
              static_cast<uint32_t>(i);
        }
        place += device::num_ones(lanes);
      }
    }
  }
};

  //   sums (num_compact_pieces(count)) uint32 scratch, positions (up to count) uint32 out,
  //   total (1) uint32 out; all device
inline void compact(device::Device& device, device::Stream stream, unsigned most_blocks,
                    const WantedFlags& wanted, uint32_t* sums, uint32_t* positions,
                    uint32_t* total) {
  const uint64_t pieces = num_compact_pieces(wanted.count);
  const unsigned blocks =
      device::blocks_for(pieces * device::warp_lanes, kBlockThreads, most_blocks);
  device::launch(device, {blocks}, stream, CountFlags{wanted, sums});
  device::launch(device, {1}, stream, SumPieces{sums, pieces, total});
  device::launch(device, {blocks}, stream, WritePositions{wanted, sums, positions});
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_COMPACT_H_
