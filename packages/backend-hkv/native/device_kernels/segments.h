// Finds the starts of segments of sorted numbers.
//
//   sorted   0 0 0 2 2 3         starts   0 3 3 5 6
#ifndef SPARRING_HKV_DEVICE_KERNELS_SEGMENTS_H_
#define SPARRING_HKV_DEVICE_KERNELS_SEGMENTS_H_

#include <cstdint>

#include "device_kernels/tile.h"

namespace sparring::device_kernels {

// Number of bits of the numbers below `limit`, at least 1: the bits that a sort must consider.
inline int num_bits_below(uint64_t limit) {
  int bits = 1;
  while (bits < 63 && uint64_t{1} << bits < limit) ++bits;
  return bits;
}

template <class Start>
struct Starts {
  static constexpr unsigned block_threads = kBlockThreads;
  const uint32_t* sorted;  // (n) uint32, ascending, each below num_segments, device
  uint64_t count;          // n
  uint64_t num_segments;
  Start* starts;           // out (num_segments + 1), device

  // Position i writes the starts of the segments after the segment of i - 1, up to its own segment.
  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i <= count; i += block.grid_threads()) {
      const uint64_t first = i == 0 ? 0 : uint64_t{sorted[i - 1]} + 1;
      const uint64_t last = i == count ? num_segments : sorted[i];
      for (uint64_t segment = first; segment <= last; ++segment)
        starts[segment] = static_cast<Start>(i);
    }
  }
};

template <class Start>
void find_starts(Device& device, Stream stream, const Starts<Start>& starts) {
  launch(device, grid_for(device, starts.count + 1), stream, starts);
}
template <class Start>
Starts(const uint32_t*, uint64_t, uint64_t, Start*) -> Starts<Start>;

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_SEGMENTS_H_
