// Converts float32 embeddings to 16 bits and back on a device, bit for bit as defined by
// core's native/kernels/halves.h.
#ifndef SPARRING_HKV_DEVICE_KERNELS_ENCODE_H_
#define SPARRING_HKV_DEVICE_KERNELS_ENCODE_H_

#include <cstdint>

#include "device/memory.h"
#include "device_kernels/row_layout.h"

namespace sparring::device_kernels {

// Embeddings of a 16-bit type, each at the start of a row.
struct HalfRows {
  RowType type;
  RowPlaces rows;
  int64_t count;  // n
  int64_t dim;
};

// out (n, dim) float32, device
void decode(device::Device& device, device::Stream stream, const HalfRows& rows, float* out);

struct Rounding {
  const int64_t* keys = nullptr;       // (n) int64, device, or NULL: round to nearest
  const int64_t* positions = nullptr;  // (n) int64, device: row i has keys[positions[i]], or NULL
  uint64_t seed = 0;
  int64_t step = 0;
};
// embeddings (n, dim) float32, device
void encode(device::Device& device, device::Stream stream, const float* embeddings,
            const Rounding& rounding, const HalfRows& rows);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_ENCODE_H_
