// Update methods on a device: gradients into rows, embedding and state in one visit.
// The formulas and the order of their sums are those of core's native/kernels/update.h,
// and so are the bits, 16-bit rows with their stochastic rounding included.
//
// 16 lanes (float64: 8) do a row. Memory traffic of a row: its embedding and state
// read and written, its gradient read (and written, by methods that keep an
// intermediate there); rows of 16 bits pass through a float32 buffer besides.
#ifndef SPARRING_HKV_DEVICE_KERNELS_UPDATE_H_
#define SPARRING_HKV_DEVICE_KERNELS_UPDATE_H_

#include <cstdint>

#include "device/memory.h"
#include "device_kernels/row_layout.h"
#include "sparring/update_hyper_parameters.h"

namespace sparring::device_kernels {

using updates::HyperParameters;
using updates::UpdateConstants;
using updates::UpdateMethod;

struct Update {
  UpdateMethod method;
  RowLayout layout;
  HyperParameters hyper;
  int64_t step;                         // of this update, from 1
  uint64_t rounding_seed;               // of 16-bit rows
  const int64_t* keys;                  // (n) int64, device
  const int64_t* positions = nullptr;   // (n) int64, device: row i takes key and gradient
                                        // positions[i]; NULL: i
  RowPlaces rows;                       // in, out (n)
  void* gradients;                      // (n, dim) of the computing type, device; overwritten
  int64_t count;                        // n
  float* decoded = nullptr;             // (num_decoded) float32, device: room for 16-bit rows
};

// How many float32 `update` needs room for, besides its arguments: none unless rows have 16
// bits. The caller takes it, since rows are changed where nothing may fail any more.
constexpr int64_t num_decoded(RowType type, int64_t count, int64_t dim) {
  return is_half(type) ? count * dim : 0;
}

// Does not wait for the device, and takes no memory.
// REQUIRES: layout.state_width == updates::state_width_of(method, dim).
// Throws DeviceError.
void update(device::Device& device, device::Stream stream, const Update& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_UPDATE_H_
