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
#include <string_view>

#include "device/memory.h"
#include "device_kernels/row_layout.h"

namespace sparring::device_kernels {

enum class UpdateMethod : int32_t {
  sgd,
  momentum,
  adagrad,
  rowwise_adagrad,
  adam,
  adamw,
  partial_rowwise_adam,
  lamb,
  rmsprop,
  lion,
  ftrl,
  group_ftrl,
};
// Returns false for a name that is none of these.
bool update_method_named(std::string_view name, UpdateMethod* method);
// How many elements of state a method keeps for a row of `dim`.
int64_t state_width_of(UpdateMethod method, int64_t dim);

// The hyper-parameters of all methods; each reads its own. Meanings and papers are
// in core's sparring.updates, which also checks them.
struct HyperParameters {
  double lr = 0;
  double weight_decay = 0;
  double momentum = 0;
  bool is_nesterov = false;
  double lr_decay = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double alpha = 0;
  double beta = 0;
  double l1 = 0;
  double l2 = 0;
  double l21 = 0;
  double clip_value = 0;
  double clip_norm = 0;
};

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
// REQUIRES: layout.state_width == state_width_of(method, dim).
// Throws DeviceError.
void update(device::Device& device, device::Stream stream, const Update& arguments);

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_UPDATE_H_
