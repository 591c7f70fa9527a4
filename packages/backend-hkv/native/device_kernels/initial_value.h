// The initial values of four neighbouring columns, for kernels.
#ifndef SPARRING_HKV_DEVICE_KERNELS_INITIAL_VALUE_H_
#define SPARRING_HKV_DEVICE_KERNELS_INITIAL_VALUE_H_

#include "device_kernels/initialize.h"
#include "device_kernels/normal.h"
#include "device_kernels/scalars.h"

namespace sparring::device_kernels {

// Of one 32-bit word, before it is rounded to the row's type.
SPARRING_DEVICE double initial_of_word(const InitialValues& values, uint32_t word) {
  // The values of the distribution function at -2 and 2 standard deviations.
  constexpr double below = 0.02275013194817921;
  constexpr double above = 0.97724986805182079;
  double value = (static_cast<double>(word) + 0.5) * 0x1p-32;
  if (values.kind == InitialKind::truncated_normal) value = below + value * (above - below);
  if (values.kind != InitialKind::uniform) value = normal_deviate(value);
  value = values.first + value * values.second;
  value = value < values.lower ? values.lower : value;
  return value > values.upper ? values.upper : value;
}

template <class T>
struct FourColumns {
  T values[4];
};

// Columns [4 block, 4 block + 4) of the embedding of `key`.
template <class T>
SPARRING_DEVICE FourColumns<T> initial_columns(const InitialValues& values, int64_t key,
                                               uint64_t block) {
  FourColumns<T> columns;
  if (values.kind == InitialKind::constant) {
    for (int i = 0; i < 4; ++i) columns.values[i] = Stored<T>::of_double(values.first);
    return columns;
  }
  const PhiloxBlock words = philox_of(key, static_cast<uint32_t>(block), 0, values.philox_key);
  for (int i = 0; i < 4; ++i)
    columns.values[i] = Stored<T>::of_double(initial_of_word(values, words.words[i]));
  return columns;
}

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_INITIAL_VALUE_H_
