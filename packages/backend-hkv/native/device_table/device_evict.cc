// Insertion into tables that evict, and the evicted rows.
#include <algorithm>
#include <string>
#include <utility>

#include "device_call_counters.h"
#include "device_compact.h"
#include "device_read_kernels.h"
#include "device_state.h"
#include "sparring/storage_border.h"

namespace sparring::hkv {

using border::StatusError;

DeviceTable::State::Departures DeviceTable::State::prepare_departures(uint64_t count,
                                                                      uint64_t most,
                                                                      device::Stream stream) {
  Departures departures;
  departures.most = most;
  if (most == 0) return departures;
  departures.leaves = buffer<uint8_t>(count, stream);
  departures.keys = buffer<int64_t>(count, stream);
  departures.scores = buffer<uint64_t>(count, stream);
  departures.sources = buffer<uint64_t>(count, stream);
  departures.sums = buffer<uint32_t>(num_compact_pieces(count), stream);
  departures.positions = buffer<uint32_t>(most, stream);
  departures.total = buffer<uint32_t>(1, stream);
  departures.out_keys = buffer<int64_t>(most, stream);
  departures.out_rows = buffer<char>(most * options.table.row_bytes, stream);
  departures.out_scores = buffer<uint64_t>(most, stream);
  device.fill(departures.leaves.as<void>(), 0, count, stream);
  return departures;
}

void DeviceTable::State::insert_or_evict(Insertion& insertion, const uint64_t* scores,
                                         uint32_t* numbers, const Departures& departures) {
  launch(insertion.stream, insertion.count,
         InsertOrEvict{index->view(), insertion.sorted(), policy.rule(), insertion.keys, scores,
                       numbers, departures.arrays(), counters});
  settle(insertion.stream, SettleCounters::Work::kInsertOrEvict);
}

uint64_t DeviceTable::State::collect_departures(Departures& departures, const void* call_rows,
                                                uint64_t call_stride, void** made_at,
                                                uint64_t count, device::Stream stream) {
  if (departures.most == 0) return 0;
  compact(device, stream, most_blocks(), {departures.leaves.as<uint8_t>(), count, 1 << 1},
          departures.sums.as<uint32_t>(), departures.positions.as<uint32_t>(),
          departures.total.as<uint32_t>());
  uint32_t num_left = 0;
  to_host.read({{&num_left, departures.total.as<void>(), sizeof(num_left)}}, stream);
  if (num_left == 0) return 0;
  const uint64_t bytes = options.table.row_bytes;
  const DeviceRowsView view = rows->view();
  const unsigned word =
      word_bytes({address(departures.out_rows.as<void>()), bytes, address(call_rows), call_stride,
                  view.stride});
  with_word(word, [&]<class Word>() {
    launch(stream, num_left,
           CopyEvicted<Word>{view, bytes, device::row_shape<Word>(bytes), departures.arrays(),
                             departures.positions.as<uint32_t>(), num_left,
                             static_cast<const char*>(call_rows), call_stride, made_at,
                             departures.out_keys.as<int64_t>(), departures.out_rows.as<char>(),
                             departures.out_scores.as<uint64_t>()});
  });
  return num_left;
}

void DeviceTable::State::hand_over(const SparringEvictionSink& sink, const Departures& departures,
                                   uint64_t num_left) {
  if (num_left == 0 || sink.receive == nullptr) return;
  check_taken(sink.receive(sink.context, static_cast<int64_t>(num_left),
                           departures.out_keys.as<int64_t>(), departures.out_rows.as<void>(),
                           departures.out_scores.as<uint64_t>()));
}

void DeviceTable::State::check_taken(int32_t answer) {
  if (answer == 0) return;
  throw StatusError(SPARRING_INTERNAL,
                    "evicted rows: the sink rejected them; they were removed from the table "
                    "nevertheless, and rows that the sink did not accept are lost");
}

void DeviceTable::State::upsert_evicting(SparringUpsert& call) {
  const device::Stream stream = call.call.stream;
  const auto count = static_cast<uint64_t>(call.count);
  CallCounters counted(*this, stream);
  Insertion insertion = locate(call.keys, count, stream, false);
  const bool hands_over = call.evicted.receive != nullptr;
  if (hands_over) {
    insertion.num_missing = read_counters(stream).num_missing;
    insertion.may_insert = insertion.num_missing > 0;
  }
  Departures departures;
  device::Buffer numbers;
  if (insertion.may_insert) {
    sort(insertion);
    departures = prepare_departures(count, hands_over ? insertion.num_missing : 0, stream);
    numbers = buffer<uint32_t>(count, stream);
    device.fill(numbers.as<void>(), 0xff, count * sizeof(uint32_t), stream);
  }

  // No operation below can fail, except the device and the sink.
  begin_change();
  policy.begin_call();
  touch_known(insertion, call.scores);
  scatter(insertion.numbers.as<uint32_t>(), count, call.rows, call.row_stride, stream);
  if (!insertion.may_insert) return counted.settled();
  insert_or_evict(insertion, call.scores, numbers.as<uint32_t>(), departures);
  counted.settled();
  const uint64_t num_left =
      collect_departures(departures, call.rows, call.row_stride, nullptr, count, stream);
  scatter(numbers.as<uint32_t>(), count, call.rows, call.row_stride, stream);
  hand_over(call.evicted, departures, num_left);
}

}  // namespace sparring::hkv
