// Update methods on a device: apply gradients to rows, embedding and state in one pass.
// The formulas and the order of their sums, and therefore the bits, are those of core's
// native/kernels/update.h, including 16-bit rows with stochastic rounding.
//
// 16 lanes (float64: 8) process a row. Memory traffic per row: its embedding and state are
// read and written, its gradient is read (and written, by methods that store an intermediate
// there); rows of 16 bits also pass through a float32 buffer.
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
  const int64_t* positions = nullptr;   // (n) int64, device: row i uses key and gradient
                                        // positions[i]; NULL: i
  RowPlaces rows;                       // in, out (n)
  void* gradients;                      // (n, dim) of the computing type, device; overwritten
  int64_t count;                        // n
  float* decoded = nullptr;             // (num_decoded) float32, device: buffer for 16-bit rows
};

// Number of float32 in the buffer that `update` needs; 0 unless rows have 16 bits. The caller
// allocates it, because nothing may fail while rows are updated.
constexpr int64_t num_decoded(RowType type, int64_t count, int64_t dim) {
  return is_half(type) ? count * dim : 0;
}

// Does not wait for the device, and allocates no memory.
// REQUIRES: layout.state_width == updates::state_width_of(method, dim).
// Throws DeviceError.
void update(device::Device& device, device::Stream stream, const Update& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_UPDATE_H_
