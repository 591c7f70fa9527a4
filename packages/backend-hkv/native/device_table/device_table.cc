#include "device_table.h"

#include <memory>
#include <string>
#include <utility>

#include "device_call_counters.h"
#include "device_read_kernels.h"
#include "device_state.h"
#include "set_option.h"

namespace sparring::hkv {
namespace {

std::string named(const char* what, int64_t count) {
  return std::string(what) + " of " + std::to_string(count) + " keys";
}

}  // namespace

DeviceTable::DeviceTable(device::Device& device, const DeviceTableOptions& options)
    : state_(std::make_unique<State>(device, options)) {}

DeviceTable::~DeviceTable() = default;

uint64_t DeviceTable::row_bytes() const { return state_->options.table.row_bytes; }
bool DeviceTable::keeps_scores() const { return state_->keeps_scores(); }
device::Stream DeviceTable::stream() const { return state_->own_stream; }
uint64_t DeviceTable::pinned_bytes() const {
  const std::shared_lock<ReaderWriterLock> held(state_->lock);
  return state_->rows->pinned_bytes();
}

void DeviceTable::guard(const std::string& what, const std::function<void()>& body) {
  state_->run(what, body);
}

void DeviceTable::find(SparringFind& call) {
  State& state = *state_;
  state.check_count(call.count);
  if (call.count == 0) return;
  const device::Stream stream = call.call.stream;
  state.read(stream, named("find", call.count), [&] {
    const auto count = static_cast<uint64_t>(call.count);
    const uint64_t bytes = call.columns.end - call.columns.begin;
    const DeviceRowsView rows = state.rows->view();
    const unsigned word = word_bytes(
        {address(call.rows), call.row_stride, bytes, call.columns.begin, rows.stride});
    with_word(word, [&]<class Word>() {
      state.launch(stream, count,
                   FindRows<Word>{state.index->view(), rows, call.keys, count, call.columns.begin,
                                  device::row_shape<Word>(bytes), static_cast<char*>(call.rows),
                                  call.row_stride, call.found});
    });
  });
}

void DeviceTable::upsert(SparringUpsert& call) {
  State& state = *state_;
  state.check_count(call.count);
  const device::Stream stream = call.call.stream;
  state.write(stream, named("upsert", call.count), [&] {
    state.check_scores(call.scores);
    if (call.count == 0) return state.policy.begin_call();
    if (state.layout.evicts) return state.upsert_evicting(call);
    State::CallCounters counted(state, stream);
    State::Insertion insertion =
        state.locate(call.keys, static_cast<uint64_t>(call.count), stream, false);
    state.prepare_chained(insertion, "upsert", nullptr);
    // No operation below can fail, except the device.
    state.begin_change();
    state.policy.begin_call();
    state.insert_chained(insertion, call.scores);
    counted.settled();
    state.scatter(insertion.numbers.as<uint32_t>(), insertion.count, call.rows, call.row_stride,
                  stream);
  });
}

void DeviceTable::touch(SparringTouch& call) {
  State& state = *state_;
  state.check_count(call.count);
  const device::Stream stream = call.call.stream;
  state.write(stream, named("touch", call.count), [&] {
    state.check_scores(call.scores);
    state.policy.begin_call();
    if (call.count == 0) return;
    const auto count = static_cast<uint64_t>(call.count);
    state.launch(stream, count, TouchKeys{state.index->view(), state.policy.rule(), call.keys,
                                          call.scores, count});
  });
}

void DeviceTable::stat(SparringStat& call) {
  State& state = *state_;
  state.read(state.own_stream, "stat", [&] {
    const DeviceCounters now = state.read_counters(state.own_stream);
    call.capabilities = SPARRING_CONCURRENT_READS;
    if (state.layout.is_bounded) call.capabilities |= SPARRING_BOUNDED;
    if (state.layout.evicts) call.capabilities |= SPARRING_EVICTS;
    if (state.options.table.policy == PolicyKind::kCustom) {
      call.capabilities |= SPARRING_SCORES_GIVEN;
    }
    call.row_bytes = state.options.table.row_bytes;
    call.size = static_cast<int64_t>(now.size);
    call.capacity = state.layout.is_bounded ? static_cast<int64_t>(state.layout.max_rows) : -1;
    call.memory_bytes = sizeof(DeviceCounters) + state.index->memory_bytes() +
                        state.rows->memory_bytes();
  });
}

void DeviceTable::clear() {
  State& state = *state_;
  state.write(state.own_stream, "clear", [&] {
    device::Device& device = state.device;
    std::unique_ptr<DeviceIndex> index;
    std::unique_ptr<DeviceRows> rows;
    if (state.layout.num_fixed_heads == 0) {
      index = std::make_unique<DeviceIndex>(device, state.own_stream, state.layout,
                                            state.keeps_scores(), state.options.table.hash_seed);
    }
    if (!state.layout.evicts) {
      rows = std::make_unique<DeviceRows>(device, state.own_stream, state.options.table.row_bytes,
                                          state.layout.max_rows);
    }
    state.begin_change();
    if (index != nullptr) {
      state.index = std::move(index);
    } else {
      state.index->clear();
    }
    if (rows != nullptr) state.rows = std::move(rows);
    device.fill(state.counters, 0, sizeof(DeviceCounters), state.own_stream);
    state.known = {};
    state.num_unread = 0;
  });
}

void DeviceTable::set_option(const char* name, const char* value) {
  const std::unique_lock<ReaderWriterLock> held(state_->lock);
  set_policy_option(state_->policy, name, value);
}

}  // namespace sparring::hkv
