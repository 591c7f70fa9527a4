// Adjacent elements of a row, read and written with one access.
#ifndef SPARRING_HKV_DEVICE_KERNELS_ELEMENTS_H_
#define SPARRING_HKV_DEVICE_KERNELS_ELEMENTS_H_

#include <cstdint>
#include <cstring>

#include "device/atomics.h"

namespace sparring::device_kernels {

// kCount elements of T, read with one access if they fill 16 bytes.
template <class T, unsigned kCount>
struct Elements {
  T values[kCount];

  SPARRING_DEVICE static Elements load(const T* from) {
    Elements result;
    if constexpr (sizeof(Elements) == 16) {
      const device::Vector16 read = device::load_16(from);
      memcpy(&result, &read, 16);
    } else if constexpr (sizeof(Elements) == 8 && kCount > 1) {
      const uint64_t read = *reinterpret_cast<const uint64_t*>(from);
      memcpy(&result, &read, 8);
    } else {
      for (unsigned k = 0; k < kCount; ++k) result.values[k] = from[k];
    }
    return result;
  }
  SPARRING_DEVICE void store(T* to) const {
    if constexpr (sizeof(Elements) == 16) {
      device::Vector16 written;
      memcpy(&written, this, 16);
      device::store_16(to, written);
    } else {
      for (unsigned k = 0; k < kCount; ++k) to[k] = values[k];
    }
  }
};

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_ELEMENTS_H_
