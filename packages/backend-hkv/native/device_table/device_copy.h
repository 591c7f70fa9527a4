// Copies rows of the table to dense arrays and back, 32 per warp: device/move_rows.h.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_COPY_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_COPY_H_

#include <cstdint>

#include "device/move_rows.h"
#include "device_locate.h"

namespace sparring::hkv {

using device::address;
using device::word_bytes;
using device::with_word;

// Calls body(i, num_rows) for all i of [0, count), one per lane, with the whole warp together: the
// first `num_rows` lanes have an i below count.
template <class Body>
SPARRING_DEVICE void for_each_row(const device::Block& block, uint64_t count, const Body& body) {
  for (uint64_t first = block.warp_in_grid() * device::warp_lanes; first < count;
       first += block.grid_warps() * device::warp_lanes) {
    const uint64_t left = count - first;
    body(first + block.warp().lane(),
         left < device::warp_lanes ? static_cast<unsigned>(left) : device::warp_lanes);
  }
}

// Copies bytes of rows, given by number, to a dense array; kNoDeviceRow gives zeros.
template <class Word>
struct GatherRows {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceRowsView rows;
  uint64_t begin;           // first requested byte of the row
  device::RowShape shape;   // of the requested bytes
  const uint32_t* numbers;  // (count) device
  uint64_t count;
  char* out;  // (count, out_stride) bytes, device
  uint64_t out_stride;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for_each_row(block, count, [&](uint64_t i, unsigned num_rows) {
      const uint32_t number = i < count ? numbers[i] : kNoDeviceRow;
      device::move_rows<Word, device::Reading::kOnce>(
          block.warp(), shape, num_rows,
          number == kNoDeviceRow ? nullptr : rows.at(number) + begin,
          i < count ? out + i * out_stride : nullptr);
    });
  }
};

// Copies whole rows of the call to rows given by number; kNoDeviceRow is skipped.
template <class Word>
struct ScatterRows {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceRowsView rows;
  device::RowShape shape;
  const uint32_t* numbers;  // (count) device
  uint64_t count;
  const char* in;  // (count, in_stride) bytes, device
  uint64_t in_stride;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for_each_row(block, count, [&](uint64_t i, unsigned num_rows) {
      const uint32_t number = i < count ? numbers[i] : kNoDeviceRow;
      device::move_rows<Word, device::Reading::kOnce>(
          block.warp(), shape, num_rows, in + i * in_stride,
          number == kNoDeviceRow ? nullptr : rows.at(number));
    });
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_COPY_H_
