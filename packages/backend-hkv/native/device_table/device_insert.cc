// Looks up the keys of a call that inserts, and inserts into tables with chains.
#include <bit>
#include <utility>

#include "device/algorithms.h"
#include "device_call_counters.h"
#include "device_erase_kernels.h"
#include "device_insert_kernels.h"
#include "device_read_kernels.h"
#include "device_state.h"

namespace sparring::hkv {
namespace {

// After the heads doubled: the heads of the keys to insert.
struct FindHeads {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceIndexView index;
  uint32_t old_num_heads;
  const int64_t* keys;  // (count) device
  uint64_t count;
  uint32_t* heads;  // (count) device, in and out

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      heads[i] = heads[i] == old_num_heads ? index.num_heads : index.head_of(index.hash(keys[i]));
    }
  }
};

// Number of heads per free overflow bucket, which are kept so that small calls need not wait to know
// whether they suffice.
constexpr uint64_t kHeadsPerSpare = 64;

}  // namespace

DeviceTable::State::Insertion DeviceTable::State::locate(const int64_t* keys, uint64_t count,
                                                         device::Stream stream, bool for_update) {
  Insertion insertion;
  insertion.stream = stream;
  insertion.keys = keys;
  insertion.count = count;
  insertion.numbers = buffer<uint32_t>(count, stream);
  if (for_update) insertion.missing = buffer<uint8_t>(count, stream);
  insertion.heads = buffer<uint32_t>(count, stream);
  insertion.positions = buffer<uint32_t>(count, stream);
  insertion.num_missing = count;
  launch(stream, count,
         LocateKeys{index->view(), keys, count, true, insertion.numbers.as<uint32_t>(),
                    insertion.heads.as<uint32_t>(), insertion.positions.as<uint32_t>(),
                    insertion.missing.as<uint8_t>(), counters});
  return insertion;
}

void DeviceTable::State::sort(Insertion& insertion) {
  const uint64_t count = insertion.count;
  insertion.sorted_heads = buffer<uint32_t>(count, insertion.stream);
  insertion.sorted_positions = buffer<uint32_t>(count, insertion.stream);
  // num_heads itself is a possible value.
  const auto bits = static_cast<int>(std::bit_width(index->num_heads()));
  device::sort_pairs(device, insertion.stream, insertion.heads.as<uint32_t>(),
                     insertion.positions.as<uint32_t>(), insertion.sorted_heads.as<uint32_t>(),
                     insertion.sorted_positions.as<uint32_t>(), count, {0, bits});
}

void DeviceTable::State::prepare_chained(Insertion& insertion, const char* what,
                                         SparringUpdate* update, const DeviceCounters* counted) {
  const device::Stream stream = insertion.stream;
  const uint64_t count = insertion.count;
  const uint64_t most_size = known.size + num_unread + count;
  const bool fits = most_size <= layout.max_rows && most_size <= index->comfortable_rows() &&
                    known.next_row + num_unread + count <= rows->capacity() &&
                    known.next_overflow + num_unread + count <= index->overflow_capacity();
  if (!fits || update != nullptr) {
    const DeviceCounters now = counted != nullptr ? *counted : read_counters(stream);
    insertion.num_missing = now.num_missing;
    insertion.is_counted = true;
    known = now;
    num_unread = 0;
    if (update != nullptr) admit(insertion, *update);
    check_room(static_cast<int64_t>(count), insertion.num_missing, now.size, what);
    insertion.may_insert = insertion.num_missing > 0;
    if (insertion.may_insert) grow(insertion, now.size);
  }
  if (!insertion.may_insert) return;
  sort(insertion);
  insertion.returned = buffer<uint32_t>(insertion.num_missing, stream);
  insertion.most_overflow = insertion.num_missing;
  if (known.next_overflow + num_unread + insertion.num_missing > index->overflow_capacity()) {
    launch(stream, count, ForecastOverflow{index->view(), insertion.sorted(), counters});
    const DeviceCounters now = read_counters(stream);
    insertion.most_overflow = now.overflow_needed;
    const Detour detour(*order, stream, own_stream);
    index->reserve_overflow(now.next_overflow + now.overflow_needed);
  }
}

void DeviceTable::State::grow(Insertion& insertion, uint64_t size) {
  const device::Stream stream = insertion.stream;
  const auto old_num_heads = static_cast<uint32_t>(index->num_heads());
  {
    const Detour detour(*order, stream, own_stream);
    rows->reserve(known.next_row + insertion.num_missing, row_budget());
    while (size + insertion.num_missing > index->comfortable_rows() && index->can_double()) {
      double_heads();
    }
  }
  if (index->num_heads() == old_num_heads) return;
  launch(stream, insertion.count,
         FindHeads{index->view(), old_num_heads, insertion.keys, insertion.count,
                   insertion.heads.as<uint32_t>()});
}

void DeviceTable::State::double_heads() {
  index->prepare_doubling();
  // The list must have capacity for released buckets, of which there are no more than existed.
  index->reserve_overflow(index->num_heads() / kHeadsPerSpare);
  begin_change();
  launch(own_stream, index->num_heads() * device::warp_lanes,
         SplitHeads{index->view(), free_lists(nullptr), counters});
  settle(own_stream, SettleCounters::Work::kSplit);
  index->finish_doubling();
  end_change();
}

void DeviceTable::State::touch_known(const Insertion& insertion, const uint64_t* scores) {
  if (!keeps_scores()) return;
  if (!layout.has_chains()) {
    return launch(insertion.stream, insertion.count,
                  TouchRows{index->view(), policy.rule(), insertion.keys,
                            insertion.numbers.as<uint32_t>(), scores, insertion.count});
  }
  launch(insertion.stream, insertion.count,
         TouchKeys{index->view(), policy.rule(), insertion.keys, scores, insertion.count});
}

void DeviceTable::State::insert_chained(Insertion& insertion, const uint64_t* scores) {
  touch_known(insertion, scores);
  if (!insertion.may_insert) return;
  auto* const returned = insertion.returned.as<uint32_t>();
  launch(insertion.stream, insertion.count,
         InsertKeys{index->view(), insertion.sorted(), policy.rule(), insertion.keys, scores,
                    free_lists(returned), returned, insertion.numbers.as<uint32_t>(), counters});
  settle(insertion.stream, SettleCounters::Work::kInsertChained, returned);
  if (insertion.is_counted) {
    known.size += insertion.num_missing;
    known.next_row += static_cast<uint32_t>(insertion.num_missing);
    known.next_overflow += static_cast<uint32_t>(insertion.most_overflow);
  } else {
    num_unread += insertion.num_missing;
  }
}

void DeviceTable::State::scatter(const uint32_t* numbers, uint64_t count, const void* from,
                                 uint64_t stride, device::Stream stream) {
  const uint64_t bytes = options.table.row_bytes;
  const DeviceRowsView view = rows->view();
  with_word(word_bytes({address(from), stride, bytes, view.stride}), [&]<class Word>() {
    launch(stream, count,
           ScatterRows<Word>{view, device::row_shape<Word>(bytes), numbers, count,
                             static_cast<const char*>(from), stride});
  });
}

void DeviceTable::State::gather(const uint32_t* numbers, uint64_t count,
                                const SparringColumns& columns, void* out, uint64_t stride,
                                device::Stream stream) {
  const uint64_t bytes = columns.end - columns.begin;
  const DeviceRowsView view = rows->view();
  with_word(word_bytes({address(out), stride, bytes, columns.begin, view.stride}),
            [&]<class Word>() {
              launch(stream, count,
                     GatherRows<Word>{view, columns.begin, device::row_shape<Word>(bytes), numbers,
                                      count, static_cast<char*>(out), stride});
            });
}

}  // namespace sparring::hkv
