// The dot product in the order of core's kernels: 64 bytes of lanes, each of which sums
// every 16th (double: every 8th) product; then the lanes are added by halves.
#ifndef SPARRING_HKV_DEVICE_KERNELS_DOT_H_
#define SPARRING_HKV_DEVICE_KERNELS_DOT_H_

#include "device_kernels/tile.h"

namespace sparring::device_kernels {

template <class T>
using DotTile = Tile<64 / sizeof(T)>;

// All lanes of the tile get the result. All tiles of the warp must call it; dim 0 gives 0.
template <class T>
SPARRING_DEVICE T dot(const DotTile<T>& tile, const T* left, const T* right, int64_t dim) {
  T sum = 0;
  for (int64_t at = tile.lane(); at < dim; at += DotTile<T>::num_lanes)
    sum = sum + left[at] * right[at];
  return tile.sum_in_halves(sum);
}

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_DOT_H_
