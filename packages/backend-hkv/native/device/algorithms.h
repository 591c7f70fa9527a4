// Sorting, sums and selections over device arrays, with CUB on CUDA and plain C++
// on the emulator. All are deterministic and none waits for the device. Temporary
// memory is allocated from the device, on the stream. Counts are below 2^31.
//
// Throw OutOfDeviceMemory and DeviceError; the outputs are undefined then.
#ifndef SPARRING_HKV_DEVICE_ALGORITHMS_H_
#define SPARRING_HKV_DEVICE_ALGORITHMS_H_

#include <cstddef>
#include <cstdint>

#include "launch_batch.h"
#include "memory.h"

#if defined(__CUDACC__)
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include "cuda_status.h"
#else
#include <algorithm>
#include <numeric>
#include <vector>

#include "emulated_device.h"
#endif

namespace sparring::device {

// Bits [begin, end) of a key; bit 0 is the lowest.
struct BitRange {
  int begin;
  int end;
};

#if defined(__CUDACC__)

namespace detail {
// CUB is called twice: to query the bytes it needs, then to run.
template <class Ask>
void with_temporary(Device& device, Stream stream, const char* doing, Ask ask) {
  LaunchBatch::flush_current();
  const InUse here(device);
  // CUB reads the thread's last error, so an error of other code is cleared first.
  static_cast<void>(cudaGetLastError());
  size_t num_bytes = 0;
  throw_if_start_failed(ask(nullptr, num_bytes), doing);
  const Buffer temporary(device, num_bytes > 0 ? num_bytes : 1, stream);
  throw_if_start_failed(ask(temporary.as<void>(), num_bytes), doing);
}
}  // namespace detail

#endif

// A stable sort of (key, value) pairs by the bits `bits` of the keys, ascending.
// Key: uint32_t, uint64_t. Inputs and outputs do not overlap.
//   keys, values              (count) Key, uint32, device, input
//   sorted_keys, sorted_values (count) Key, uint32, device, output
template <class Key>
void sort_pairs(Device& device, Stream stream, const Key* keys, const uint32_t* values,
                Key* sorted_keys, uint32_t* sorted_values, uint64_t count, BitRange bits) {
  if (count == 0) return;
#if defined(__CUDACC__)
  detail::with_temporary(device, stream, "sorting", [&](void* temporary, size_t& num_bytes) {
    return cub::DeviceRadixSort::SortPairs(temporary, num_bytes, keys, sorted_keys, values,
                                           sorted_values, static_cast<int>(count), bits.begin,
                                           bits.end, static_cast<cudaStream_t>(stream));
  });
#else
  auto& emulated = static_cast<EmulatedDevice&>(device);
  LaunchBatch::flush_current();
  emulated.begin_launch(stream);
  // As much temporary memory as a radix sort needs, so that tests can exhaust memory here too.
  const Buffer temporary(device, count * (sizeof(Key) + 4), stream);
  const Key mask = bits.end - bits.begin >= static_cast<int>(8 * sizeof(Key))
                       ? static_cast<Key>(~Key{0})
                       : static_cast<Key>((Key{1} << (bits.end - bits.begin)) - 1);
  emulated.put(stream, [=] {
    std::vector<uint64_t> order(count);
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](uint64_t left, uint64_t right) {
      return ((keys[left] >> bits.begin) & mask) < ((keys[right] >> bits.begin) & mask);
    });
    for (uint64_t i = 0; i < count; ++i) {
      sorted_keys[i] = keys[order[i]];
      sorted_values[i] = values[order[i]];
    }
  });
#endif
}

// sums[i] = values[0] + ... + values[i - 1]. T: uint32_t, uint64_t; may be in place.
//   values (count) T, device, input;  sums (count) T, device, output
template <class T>
void exclusive_sum(Device& device, Stream stream, const T* values, T* sums, uint64_t count) {
  if (count == 0) return;
#if defined(__CUDACC__)
  detail::with_temporary(device, stream, "summing", [&](void* temporary, size_t& num_bytes) {
    return cub::DeviceScan::ExclusiveSum(temporary, num_bytes, values, sums,
                                         static_cast<int>(count),
                                         static_cast<cudaStream_t>(stream));
  });
#else
  auto& emulated = static_cast<EmulatedDevice&>(device);
  LaunchBatch::flush_current();
  emulated.begin_launch(stream);
  const Buffer temporary(device, 1, stream);
  emulated.put(stream, [=] {
    T sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const T value = values[i];
      sums[i] = sum;
      sum = static_cast<T>(sum + value);
    }
  });
#endif
}

// Selects the items whose flag is not 0, in order, and counts them.
//   items (count) T, flags (count) uint8, device, input
//   selected (up to count) T, num_selected (1) uint32, device, output
template <class T>
void select_flagged(Device& device, Stream stream, const T* items, const uint8_t* flags,
                    T* selected, uint32_t* num_selected, uint64_t count) {
  if (count == 0) {
    device.fill(num_selected, 0, sizeof(uint32_t), stream);
    return;
  }
#if defined(__CUDACC__)
  detail::with_temporary(device, stream, "selecting", [&](void* temporary, size_t& num_bytes) {
    return cub::DeviceSelect::Flagged(temporary, num_bytes, items, flags, selected, num_selected,
                                      static_cast<int>(count), static_cast<cudaStream_t>(stream));
  });
#else
  auto& emulated = static_cast<EmulatedDevice&>(device);
  LaunchBatch::flush_current();
  emulated.begin_launch(stream);
  const Buffer temporary(device, 1, stream);
  emulated.put(stream, [=] {
    uint32_t num = 0;
    for (uint64_t i = 0; i < count; ++i)
      if (flags[i] != 0) selected[num++] = items[i];
    *num_selected = num;
  });
#endif
}

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_ALGORITHMS_H_
