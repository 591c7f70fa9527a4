#include "device_kernels/finite.h"

#include "device/atomics.h"
#include "device_kernels/scalars.h"
#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

template <class T>
struct ChecksRows {
  static constexpr unsigned block_threads = kBlockThreads;
  FiniteRows<T> a;

  // One warp per row.
  SPARRING_DEVICE void operator()(const Block& block) const {
    const Warp warp = block.warp();
    for (uint64_t i = block.warp_in_grid(); i < static_cast<uint64_t>(a.count);
         i += block.grid_warps()) {
      bool has_bad = false;
      const T* row = a.values + i * static_cast<uint64_t>(a.dim);
      for (int64_t at = warp.lane(); at < a.dim; at += device::warp_lanes)
        has_bad |= is_bad(row[at]);
      has_bad = warp.any(has_bad);
      if (warp.lane() == 0) a.finite[i] = has_bad ? 0 : 1;
    }
  }
};

template <class T>
struct CountsBad {
  static constexpr unsigned block_threads = kBlockThreads;
  const T* values;
  uint64_t count;
  uint64_t* num_bad;

  SPARRING_DEVICE void operator()(const Block& block) const {
    uint64_t mine = 0;
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads())
      mine += is_bad(values[i]) ? 1 : 0;
    if (mine != 0) device::atomic_add(num_bad, mine);
  }
};

}  // namespace

template <class T>
void finite_rows(Device& device, Stream stream, const FiniteRows<T>& arguments) {
  if (arguments.count == 0) return;
  launch(device, grid_for(device, static_cast<uint64_t>(arguments.count) * device::warp_lanes),
         stream, ChecksRows<T>{arguments});
}

template <class T>
void count_non_finite(Device& device, Stream stream, const T* values, int64_t count,
                      uint64_t* num_bad) {
  device.fill(num_bad, 0, sizeof(uint64_t), stream);
  if (count == 0) return;
  launch(device, grid_for(device, static_cast<uint64_t>(count)), stream,
         CountsBad<T>{values, static_cast<uint64_t>(count), num_bad});
}

template void finite_rows(Device&, Stream, const FiniteRows<float>&);
template void finite_rows(Device&, Stream, const FiniteRows<double>&);
template void count_non_finite(Device&, Stream, const float*, int64_t, uint64_t*);
template void count_non_finite(Device&, Stream, const double*, int64_t, uint64_t*);

}  // namespace sparring::device_kernels
