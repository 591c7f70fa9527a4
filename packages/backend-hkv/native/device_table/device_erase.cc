// Removes rows on request: erase, and evict of the lowest scores.
#include <algorithm>
#include <utility>

#include "device/algorithms.h"
#include "device_call_counters.h"
#include "device_erase_kernels.h"
#include "device_read_kernels.h"
#include "device_scan_kernels.h"
#include "device_state.h"

namespace sparring::hkv {
namespace {

// Maximum number of rows per round of evict.
constexpr uint64_t kRoundRows = uint64_t{1} << 20;

struct CountUp {
  static constexpr unsigned block_threads = kBlockThreads;
  uint32_t* numbers;  // out (count) device
  uint64_t count;
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      numbers[i] = static_cast<uint32_t>(i);
    }
  }
};

struct TakeScores {
  static constexpr unsigned block_threads = kBlockThreads;
  const uint64_t* scores;  // device
  const uint32_t* order;   // (count) device
  uint64_t count;
  uint64_t* taken;  // out (count) device
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      taken[i] = scores[order[i]];
    }
  }
};

struct TakeKeys {
  static constexpr unsigned block_threads = kBlockThreads;
  const uint64_t* ordered_keys;  // device
  const uint32_t* rows;          // device
  const uint32_t* order;         // (count) device
  uint64_t count;
  int64_t* keys;      // out (count) device
  uint32_t* numbers;  // out (count) device
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      keys[i] = static_cast<int64_t>(ordered_keys[order[i]] ^ uint64_t{1} << 63);
      numbers[i] = rows[order[i]];
    }
  }
};

}  // namespace

DeviceTable::State::Insertion DeviceTable::State::prepare_erasure(const int64_t* keys,
                                                                  uint64_t count,
                                                                  device::Stream stream) {
  Insertion located;
  located.stream = stream;
  located.keys = keys;
  located.count = count;
  located.numbers = buffer<uint32_t>(count, stream);
  if (layout.has_chains()) {
    const Detour detour(*order, stream, own_stream);
    // All rows that were ever allocated may become free.
    rows->reserve_list(known.next_row + num_unread);
    located.heads = buffer<uint32_t>(count, stream);
    located.positions = buffer<uint32_t>(count, stream);
  }
  launch(stream, count,
         LocateKeys{index->view(), keys, count, false, located.numbers.as<uint32_t>(),
                    located.heads.as<uint32_t>(), located.positions.as<uint32_t>(), nullptr,
                    nullptr});
  if (layout.has_chains()) sort(located);
  return located;
}

uint64_t DeviceTable::State::finish_erasure(const Insertion& located) {
  const device::Stream stream = located.stream;
  begin_change();
  if (layout.has_chains()) {
    launch(stream, located.count,
           EraseChained{index->view(), located.sorted(), located.keys, free_lists(nullptr),
                        counters});
  } else {
    launch(stream, located.count,
           EraseUnchained{index->view(), located.keys, located.numbers.as<uint32_t>(),
                          located.count, counters});
  }
  settle(stream, SettleCounters::Work::kErase);
  known = read_counters(stream);
  num_unread = 0;
  end_change();
  return known.last_removed;
}

void DeviceTable::erase(SparringErase& call) {
  State& state = *state_;
  state.check_count(call.count);
  call.erased = 0;
  if (call.count == 0) return;
  const device::Stream stream = call.call.stream;
  state.write(stream, "erase of " + std::to_string(call.count) + " keys", [&] {
    const State::Insertion located =
        state.prepare_erasure(call.keys, static_cast<uint64_t>(call.count), stream);
    call.erased = static_cast<int64_t>(state.finish_erasure(located));
  });
}

// Finds the `count` lowest entries of the table, in the order of eviction.
DeviceTable::State::Lowest DeviceTable::State::find_lowest(uint64_t count, bool with_rows,
                                                           device::Stream stream) {
  Lowest lowest;
  lowest.keys = buffer<int64_t>(count, stream);
  lowest.scores = buffer<uint64_t>(count, stream);
  lowest.numbers = buffer<uint32_t>(count, stream);
  if (with_rows) lowest.rows = buffer<char>(count * options.table.row_bytes, stream);

  const device::Buffer search_memory = buffer<RankSearch>(1, stream);
  auto* const search = search_memory.as<RankSearch>();
  RankSearch start{};
  start.wanted = count;
  device.write(search, &start, sizeof(start), stream);
  const DeviceIndexView view = index->view();
  const uint64_t num_buckets = index->num_heads() + index->overflow_capacity();
  for (uint32_t round = 0; round < 16; ++round) {
    launch(stream, num_buckets * device::warp_lanes, CountDigits{view, counters, search, round},
           CountDigits::shared_bytes);
    device::launch(device, {1}, stream, FixDigit{search, round});
  }

  const device::Buffer num_collected = buffer<uint32_t>(1, stream);
  device.fill(num_collected.as<void>(), 0, sizeof(uint32_t), stream);
  const device::Buffer keys = buffer<uint64_t>(count, stream);
  const device::Buffer scores = buffer<uint64_t>(count, stream);
  const device::Buffer numbers = buffer<uint32_t>(count, stream);
  launch(stream, num_buckets * device::warp_lanes,
         CollectLowest{view, counters, search, num_collected.as<uint32_t>(), keys.as<uint64_t>(),
                       scores.as<uint64_t>(), numbers.as<uint32_t>()});

  // A stable sort by key, then by score.
  const device::Buffer places = buffer<uint32_t>(count, stream);
  const device::Buffer by_key = buffer<uint32_t>(count, stream);
  const device::Buffer sorted_keys = buffer<uint64_t>(count, stream);
  launch(stream, count, CountUp{places.as<uint32_t>(), count});
  device::sort_pairs(device, stream, keys.as<uint64_t>(), places.as<uint32_t>(),
                     sorted_keys.as<uint64_t>(), by_key.as<uint32_t>(), count, {0, 64});
  auto* const scores_by_key = sorted_keys.as<uint64_t>();
  launch(stream, count,
         TakeScores{scores.as<uint64_t>(), by_key.as<uint32_t>(), count, scores_by_key});
  device::sort_pairs(device, stream, scores_by_key, by_key.as<uint32_t>(),
                     lowest.scores.as<uint64_t>(), places.as<uint32_t>(), count, {0, 64});
  launch(stream, count,
         TakeKeys{keys.as<uint64_t>(), numbers.as<uint32_t>(), places.as<uint32_t>(), count,
                  lowest.keys.as<int64_t>(), lowest.numbers.as<uint32_t>()});
  if (with_rows) {
    gather(lowest.numbers.as<uint32_t>(), count, {0, options.table.row_bytes},
           lowest.rows.as<void>(), options.table.row_bytes, stream);
  }
  return lowest;
}

void DeviceTable::evict(SparringEvict& call) {
  State& state = *state_;
  call.evicted = 0;
  if (call.wanted == 0) return;
  const device::Stream stream = call.call.stream;
  state.write(stream, "evict of " + std::to_string(call.wanted) + " rows", [&] {
    state.known = state.read_counters(stream);
    state.num_unread = 0;
    const uint64_t round = std::clamp<uint64_t>(
        state.options.round_bytes / state.options.table.row_bytes, 1, kRoundRows);
    uint64_t left = std::min(static_cast<uint64_t>(call.wanted), state.known.size);
    while (left > 0) {
      const uint64_t count = std::min(left, round);
      State::Lowest lowest;
      State::Insertion located;
      try {
        lowest = state.find_lowest(count, call.sink.receive != nullptr, stream);
        located = state.prepare_erasure(lowest.keys.as<int64_t>(), count, stream);
      } catch (const device::OutOfDeviceMemory&) {
        // Earlier rounds have evicted rows: `wanted` is a maximum.
        if (call.evicted > 0) return;
        throw;
      } catch (const device::DeviceLost&) {
        throw;
      } catch (const device::DeviceError&) {
        // As above: if the device still rejects calls, the next call reports it.
        if (call.evicted > 0) return;
        throw;
      }
      state.finish_erasure(located);
      left -= count;
      call.evicted += static_cast<int64_t>(count);
      if (call.sink.receive == nullptr) continue;
      state.check_taken(call.sink.receive(call.sink.context, static_cast<int64_t>(count),
                                          lowest.keys.as<int64_t>(), lowest.rows.as<void>(),
                                          lowest.scores.as<uint64_t>()));
    }
  });
}

}  // namespace sparring::hkv
