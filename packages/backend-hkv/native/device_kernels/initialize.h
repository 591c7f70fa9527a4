// Creates initial rows on a device; sparring/initial_value.h defines the values.
#ifndef SPARRING_HKV_DEVICE_KERNELS_INITIALIZE_H_
#define SPARRING_HKV_DEVICE_KERNELS_INITIALIZE_H_

#include <cstdint>

#include "device/memory.h"
#include "device_kernels/row_layout.h"
#include "sparring/initial_value.h"

namespace sparring::device_kernels {

// Prepares an initializer for rows of `type`.
InitialValues prepare(const Initializer& initializer, RowType type);

// Writes the rows of keys without one: the embedding, then the state. Does not wait for the device.
struct Initialize {
  InitialValues values;
  RowLayout layout;
  const int64_t* keys;       // (n) int64, device
  const int64_t* positions;  // (n) int64, device: row i has keys[positions[i]]; NULL: keys[i]
  const uint8_t* flags;      // (n) uint8, device
  bool writes_flagged;       // true: write rows whose flag is 1; false: rows whose flag is 0
  int64_t count;             // n
  const void* state;         // (state_width) of the computing type, device, or NULL: zeros
  RowPlaces rows;            // in, out
};
void initialize(device::Device& device, device::Stream stream, const Initialize& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_INITIALIZE_H_
