// Reads many rows: scan and visit.
#include <algorithm>
#include <string>

#include "device/algorithms.h"
#include "device_read_kernels.h"
#include "device_scan_kernels.h"
#include "device_state.h"
#include "sparring/storage_border.h"

namespace sparring::hkv {
namespace {

using border::StatusError;

// Copies the sorted entries that fit into a chunk.
struct TakeEntries {
  static constexpr unsigned block_threads = kBlockThreads;
  const uint32_t* order;  // (count) device; NULL: unchanged order
  uint64_t count;
  const int64_t* keys;
  const uint64_t* scores;
  const uint32_t* rows;
  int64_t* out_keys;
  uint64_t* out_scores;  // or NULL
  uint32_t* out_rows;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      const uint64_t from = order == nullptr ? i : order[i];
      out_keys[i] = keys[from];
      if (out_scores != nullptr) out_scores[i] = scores[from];
      out_rows[i] = rows[from];
    }
  }
};

struct Positions {
  static constexpr unsigned block_threads = kBlockThreads;
  uint32_t* positions;  // out (count) device
  uint64_t count;
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      positions[i] = static_cast<uint32_t>(i);
    }
  }
};

// Returns the addresses of the rows of keys; NULL if there is no row.
struct ShowRows {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr bool is_batched = true;
  DeviceIndexView index;
  DeviceRowsView rows;
  const int64_t* keys;  // (count) device
  uint64_t count;
  uint64_t begin;      // first requested byte of the row
  const void** shown;  // out (count) device

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    Locator<false> locator(block.warp(), index);
    for_each_key(block, keys, count, [&](const LaneKey& lane_key, unsigned) {
      const DeviceLocation at = locator.locate(lane_key);
      if (!lane_key.is_wanted) return;
      shown[lane_key.position] = at.row == kNoDeviceRow ? nullptr : rows.at(at.row) + begin;
    });
  }
};

// The first hash that selects the head with this ordinal.
uint64_t first_hash(const HeadOrder& order, uint64_t ordinal) {
  if (order.is_growing) return ordinal << (64 - order.bits());
  __extension__ typedef unsigned __int128 Wide;
  const Wide numerator = (Wide{ordinal} << 64) + order.num_heads - 1;
  return static_cast<uint64_t>(numerator / order.num_heads);
}

}  // namespace

void DeviceTable::scan(SparringScan& call) {
  State& state = *state_;
  if (call.cursor[1] != 0) {
    throw StatusError(SPARRING_INVALID_ARGUMENT,
                      "cursor must be zero or the cursor of the previous chunk; found " +
                          std::to_string(call.cursor[1]));
  }
  state.check_count(call.capacity, "capacity", "request smaller chunks");
  state.read(call.call.stream, "scan", [&] { state.scan(call); });
}

void DeviceTable::State::scan(SparringScan& call) {
  const device::Stream stream = call.call.stream;
  const HeadOrder heads{static_cast<uint32_t>(index->num_heads()), layout.num_fixed_heads == 0};
  const uint64_t num_heads = heads.num_heads;
  const auto capacity = static_cast<uint64_t>(call.capacity);
  const uint64_t size = std::max<uint64_t>(1, read_counters(stream).size);
  // The number of heads that probably contain nine tenths of a chunk.
  const double likely = 0.9 * static_cast<double>(capacity) * static_cast<double>(num_heads) /
                        static_cast<double>(size);
  const auto window = static_cast<uint64_t>(std::clamp<double>(
      likely, 1.0, static_cast<double>(num_heads)));
  const uint64_t first = heads.ordinal(call.cursor[0]);
  const uint64_t count = std::min(window, num_heads - first);

  const device::Buffer places = buffer<uint32_t>(count + 1, stream);
  device.fill(places.as<uint32_t>() + count, 0, sizeof(uint32_t), stream);
  ScanHeads scan{index->view(), heads, first, count, call.cursor[0], places.as<uint32_t>(),
                 false, nullptr, nullptr, nullptr, nullptr};
  launch(stream, count * device::warp_lanes, scan);
  device::exclusive_sum(device, stream, places.as<uint32_t>(), places.as<uint32_t>(), count + 1);
  uint32_t total = 0;
  to_host.read({{&total, places.as<uint32_t>() + count, sizeof(total)}}, stream);

  const uint64_t given = std::min<uint64_t>(total, capacity);
  uint64_t next = first + count < num_heads ? first_hash(heads, first + count) : 0;
  if (total > 0) {
    const device::Buffer hashes = buffer<uint64_t>(total, stream);
    const device::Buffer keys = buffer<int64_t>(total, stream);
    const device::Buffer numbers = buffer<uint32_t>(total, stream);
    const device::Buffer scores = buffer<uint64_t>(total, stream);
    const device::Buffer taken = buffer<uint32_t>(given, stream);
    scan.writes = true;
    scan.hashes = hashes.as<uint64_t>();
    scan.keys = keys.as<int64_t>();
    scan.rows = numbers.as<uint32_t>();
    scan.scores = scores.as<uint64_t>();
    launch(stream, count * device::warp_lanes, scan);
    device::Buffer sorted_hashes, positions, order_by_hash;
    if (total > capacity) {
      sorted_hashes = buffer<uint64_t>(total, stream);
      positions = buffer<uint32_t>(total, stream);
      order_by_hash = buffer<uint32_t>(total, stream);
      launch(stream, total, Positions{positions.as<uint32_t>(), total});
      device::sort_pairs(device, stream, hashes.as<uint64_t>(), positions.as<uint32_t>(),
                         sorted_hashes.as<uint64_t>(), order_by_hash.as<uint32_t>(), total,
                         {0, 64});
      to_host.read({{&next, sorted_hashes.as<uint64_t>() + capacity, sizeof(next)}}, stream);
    }
    launch(stream, given,
           TakeEntries{order_by_hash.as<uint32_t>(), given, keys.as<int64_t>(),
                       scores.as<uint64_t>(), numbers.as<uint32_t>(), call.keys, call.scores,
                       taken.as<uint32_t>()});
    if (call.rows != nullptr) {
      gather(taken.as<uint32_t>(), given, call.columns, call.rows,
             call.columns.end - call.columns.begin, stream);
    }
  }
  call.count = static_cast<int64_t>(given);
  call.is_done = total <= capacity && first + count == num_heads ? 1 : 0;
  call.cursor[0] = next;
}

void DeviceTable::visit(SparringVisit& call) {
  State& state = *state_;
  state.check_count(call.count);
  const device::Stream stream = call.call.stream;
  state.read(stream, "visit of " + std::to_string(call.count) + " keys", [&] { state.show(call); });
}

void DeviceTable::State::show(SparringVisit& call) {
  if (call.count == 0) return;
  const device::Stream stream = call.call.stream;
  const auto count = static_cast<uint64_t>(call.count);
  const device::Buffer shown = buffer<const void*>(count, stream);
  launch(stream, count,
         ShowRows{index->view(), rows->view(), call.keys, count, call.columns.begin,
                  shown.as<const void*>()});
  const int32_t answer = call.show(call.context, 0, call.count, shown.as<const void*>());
  if (answer != 0) {
    throw StatusError(SPARRING_INTERNAL,
                      "the visitor of the rows returned " + std::to_string(answer) + ", expected 0");
  }
}

}  // namespace sparring::hkv
