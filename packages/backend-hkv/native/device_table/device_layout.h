// The number of buckets and rows of a device table, computed once from its options. The
// counterpart of table/layout.h.
//
//   options                      index              maximum rows    when full
//   nothing                      growing            2^32 - 1        SPARRING_CAPACITY
//   capacity, policy none        growing            capacity        SPARRING_CAPACITY
//   memory_bytes, policy none    fixed, chaining    what fits       SPARRING_CAPACITY
//   either, another policy       fixed, evicting    capacity or     the policy evicts
//                                                   what fits
//
// An evicting index has as many usable slots as rows: buckets of up to 128 slots, each
// with its own part of the capacity, so that a call never accesses other buckets than
// those of its keys. A bucket may be full, and evict, before the table is full: 3 % of
// random keys are evicted before it is 90 % full.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_LAYOUT_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_LAYOUT_H_

#include <cstdint>

#include "layout.h"

namespace sparring::hkv {

struct DeviceLayout {
  uint64_t max_rows;
  uint64_t num_fixed_heads;  // 0: growing
  uint64_t max_overflow;     // buckets
  bool is_bounded;
  bool evicts;

  bool has_chains() const { return !evicts; }
};

// Throws StatusError if the options contradict each other or if not even one row
// fits.
DeviceLayout make_device_layout(const TableOptions& options);

// Bytes from one row to the next on the device.
inline uint64_t device_row_stride(uint64_t row_bytes) {
  if (row_bytes >= 16) return (row_bytes + 15) / 16 * 16;
  uint64_t stride = 1;
  while (stride < row_bytes) stride *= 2;
  return stride;
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_LAYOUT_H_
