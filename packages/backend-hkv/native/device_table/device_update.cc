// Changes rows in place, with kernels of the caller.
#include <string>
#include <utility>

#include "device_call_counters.h"
#include "device_compact.h"
#include "device_state.h"
#include "sparring/storage_border.h"

namespace sparring::hkv {
namespace {

using border::StatusError;

// The result for a key of an update.
enum : uint8_t { kKnown = 0, kNew = 1, kRefused = 2 };

struct WidenPositions {
  static constexpr unsigned block_threads = kBlockThreads;
  const uint32_t* list;  // (count) device
  uint64_t count;
  int64_t* positions;  // out (count) device
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      positions[i] = list[i];
    }
  }
};

struct RefuseKeys {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* positions;    // (count) device
  const uint8_t* is_admitted;  // (count) device
  uint64_t count;
  uint32_t num_heads;
  uint32_t* heads;   // in and out, device
  uint8_t* missing;  // in and out, device
  DeviceCounters* counters;
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      if (is_admitted[i] != 0) continue;
      heads[positions[i]] = num_heads;
      missing[positions[i]] = kRefused;
      device::atomic_add(&counters->num_missing, ~uint32_t{0});
    }
  }
};

// The arguments of `change`.
struct DescribeChanges {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr bool is_batched = true;
  DeviceRowsView rows;
  const uint32_t* numbers;  // (n) device
  void* const* made_at;     // (n) device, for keys without a row number; or NULL
  const uint8_t* missing;   // (n) device
  const uint32_t* list;     // (count) positions, device; NULL: 0, 1, 2, ...
  uint64_t count;
  int64_t* positions;  // out (count) device
  void** pointers;     // out (count) device
  uint8_t* is_new;     // out (count) device
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      const uint64_t position = list == nullptr ? i : list[i];
      const uint32_t number = numbers[position];
      positions[i] = static_cast<int64_t>(position);
      pointers[i] = number == kNoDeviceRow ? made_at[position] : rows.at(number);
      is_new[i] = missing[position] == kNew ? 1 : 0;
    }
  }
};

}  // namespace

DeviceTable::State::Changes DeviceTable::State::prepare_changes(uint64_t count,
                                                                device::Stream stream) {
  Changes changes;
  changes.sums = buffer<uint32_t>(num_compact_pieces(count), stream);
  changes.list = buffer<uint32_t>(count, stream);
  changes.total = buffer<uint32_t>(1, stream);
  changes.positions = buffer<int64_t>(count, stream);
  changes.rows = buffer<void*>(count, stream);
  changes.is_new = buffer<uint8_t>(count, stream);
  return changes;
}

// Writes the positions of existing keys, new ones, or both to changes.list.
void DeviceTable::State::list_keys(const Insertion& insertion, const Changes& changes, bool known_too,
                                   bool new_too) {
  const auto wanted =
      static_cast<uint8_t>((known_too ? 1 << kKnown : 0) | (new_too ? 1 << kNew : 0));
  compact(device, insertion.stream, most_blocks(),
          {insertion.missing.as<uint8_t>(), insertion.count, wanted},
          changes.sums.as<uint32_t>(), changes.list.as<uint32_t>(), changes.total.as<uint32_t>());
}

void DeviceTable::State::admit(Insertion& insertion, SparringUpdate& update) {
  if (update.admit == nullptr || insertion.num_missing == 0) return;
  const device::Stream stream = insertion.stream;
  const uint64_t count = insertion.num_missing;
  const Changes scratch = prepare_changes(insertion.count, stream);
  const device::Buffer is_admitted = buffer<uint8_t>(count, stream);
  list_keys(insertion, scratch, false, true);
  auto* const positions = scratch.positions.as<int64_t>();
  launch(stream, count, WidenPositions{scratch.list.as<uint32_t>(), count, positions});
  device.fill(is_admitted.as<void>(), 0, count, stream);
  const int32_t answer = update.admit(update.context, static_cast<int64_t>(count), positions,
                                      is_admitted.as<uint8_t>());
  if (answer != 0) {
    throw StatusError(SPARRING_INTERNAL,
                      "the admission of new keys returned " + std::to_string(answer) + ", expected 0");
  }
  launch(stream, count,
         RefuseKeys{positions, is_admitted.as<uint8_t>(), count,
                    static_cast<uint32_t>(index->num_heads()), insertion.heads.as<uint32_t>(),
                    insertion.missing.as<uint8_t>(), counters});
  insertion.num_missing = read_counters(stream).num_missing;
  insertion.num_refused = count - insertion.num_missing;
}

void DeviceTable::State::change(SparringUpdate& call, const Insertion& insertion,
                                const Changes& changes, uint64_t count, const uint32_t* numbers,
                                void* const* made_at) {
  if (count == 0) return;
  const uint32_t* const list =
      count == insertion.count ? nullptr : changes.list.as<uint32_t>();
  launch(insertion.stream, count,
         DescribeChanges{rows->view(), numbers, made_at, insertion.missing.as<uint8_t>(), list,
                         count, changes.positions.as<int64_t>(), changes.rows.as<void*>(),
                         changes.is_new.as<uint8_t>()});
  call.change(call.context, static_cast<int64_t>(count), changes.positions.as<int64_t>(),
              changes.rows.as<void*>(), changes.is_new.as<uint8_t>());
  if (call.call.error.message != nullptr) {
    const std::string reason = call.call.error.message;
    if (call.call.error.release != nullptr) call.call.error.release(&call.call.error);
    call.call.error = {};
    throw device::DeviceError(reason);
  }
}

void DeviceTable::State::update_chained(SparringUpdate& call, Insertion& insertion,
                                        const DeviceCounters& now, CallCounters& counted) {
  const device::Stream stream = call.call.stream;
  const auto count = static_cast<uint64_t>(call.count);
  prepare_chained(insertion, "update", &call, &now);
  const Changes changes = prepare_changes(count, stream);

  // No operation below can fail, except the device.
  begin_change();
  policy.begin_call();
  insert_chained(insertion, call.scores);
  counted.settled();
  call.inserted = static_cast<int64_t>(insertion.num_missing);
  if (insertion.num_refused > 0) list_keys(insertion, changes, true, true);
  change(call, insertion, changes, count - insertion.num_refused,
         insertion.numbers.as<uint32_t>(), nullptr);
}

void DeviceTable::State::update_evicting(SparringUpdate& call, Insertion& insertion,
                                         const DeviceCounters& now, CallCounters& counted) {
  const device::Stream stream = call.call.stream;
  const auto count = static_cast<uint64_t>(call.count);
  const uint64_t num_missing = insertion.num_missing = now.num_missing;
  admit(insertion, call);
  const uint64_t num_new = insertion.num_missing;
  const Changes changes = prepare_changes(count, stream);
  device::Buffer numbers, made_at;
  Departures departures;
  if (num_new > 0) {
    sort(insertion);
    // Rows of keys that this call evicts again are created in the buffer of evicted rows.
    departures = prepare_departures(count, num_new, stream);
    numbers = buffer<uint32_t>(count, stream);
    made_at = buffer<void*>(count, stream);
    device.fill(numbers.as<void>(), 0xff, count * sizeof(uint32_t), stream);
  }

  // From here on only the device and the sink can fail. Existing rows are written first, so that an
  // evicted row never has a value that this call changes.
  begin_change();
  policy.begin_call();
  call.inserted = static_cast<int64_t>(num_new);
  touch_known(insertion, call.scores);
  if (num_missing > 0) list_keys(insertion, changes, true, false);
  change(call, insertion, changes, count - num_missing, insertion.numbers.as<uint32_t>(), nullptr);
  if (num_new == 0) {
    settle(stream, SettleCounters::Work::kInsertOrEvict);
    return counted.settled();
  }
  insert_or_evict(insertion, call.scores, numbers.as<uint32_t>(), departures);
  counted.settled();
  const uint64_t num_left =
      collect_departures(departures, nullptr, 0, made_at.as<void*>(), count, stream);
  if (num_new < count) list_keys(insertion, changes, false, true);
  change(call, insertion, changes, num_new, numbers.as<uint32_t>(), made_at.as<void*>());
  hand_over(call.evicted, departures, num_left);
}

void DeviceTable::State::update_located(SparringUpdate& call, Insertion& insertion,
                                        const DeviceCounters& now, CallCounters& counted) {
  return layout.evicts ? update_evicting(call, insertion, now, counted)
                       : update_chained(call, insertion, now, counted);
}

void DeviceTable::update(SparringUpdate& call) {
  State& state = *state_;
  state.check_count(call.count);
  const device::Stream stream = call.call.stream;
  state.write(stream, "update of " + std::to_string(call.count) + " keys", [&] {
    state.check_scores(call.scores);
    call.inserted = 0;
    if (call.count == 0) return state.policy.begin_call();
    State::CallCounters counted(state, stream);
    State::Insertion insertion =
        state.locate(call.keys, static_cast<uint64_t>(call.count), stream, true);
    const DeviceCounters now = state.read_counters(stream);
    state.update_located(call, insertion, now, counted);
  });
}

}  // namespace sparring::hkv
