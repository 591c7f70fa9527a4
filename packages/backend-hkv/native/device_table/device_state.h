// The implementation of DeviceTable, which its source files share. They are compiled by
// nvcc for a GPU, and by the host compiler for the emulator.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_STATE_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_STATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "device/launch.h"
#include "device/read_back.h"
#include "device_copy.h"
#include "device_counters.h"
#include "device_evict_kernels.h"
#include "device_index.h"
#include "device_layout.h"
#include "device_order.h"
#include "device_rows.h"
#include "device_segments.h"
#include "device_table.h"
#include "policy.h"
#include "reader_writer_lock.h"

namespace sparring::hkv {

class DeviceTable::State {
 public:
  State(device::Device& device, const DeviceTableOptions& options);
  ~State();

  bool keeps_scores() const { return options.table.policy != PolicyKind::kNone; }

  // ---- around every call (device_state.cc) ----

  // Runs `body` as a reader or as the writer, with its work ordered on `stream`.
  // `what` is the name of the call for messages.
  void read(device::Stream stream, const std::string& what, const std::function<void()>& body);
  void write(device::Stream stream, const std::string& what, const std::function<void()>& body);

  // Throws StreamRefused if the table must not enqueue work on the stream.
  void check_stream(device::Stream stream) const;
  void end(device::Stream stream, void (DeviceOrder::*end_work)(device::Stream));

  // Converts failures of the device to a status, and remembers permanent ones.
  void run(const std::string& what, const std::function<void()>& body);

  // ---- building blocks of calls ----

  // The number of blocks that run at once.
  unsigned most_blocks() const { return device.num_multiprocessors() * (2048 / kBlockThreads); }
  template <class Kernel>
  void launch(device::Stream stream, uint64_t num_threads, const Kernel& kernel,
              size_t shared_bytes = 0) {
    device::launch(device, {device::blocks_for(num_threads, Kernel::block_threads, most_blocks()),
                            shared_bytes},
                   stream, kernel);
  }
  template <class T>
  device::Buffer buffer(uint64_t count, device::Stream stream) {
    return device::make_buffer<T>(device, count, stream);
  }

  // From here to the end of a write the table is in an intermediate state: if the device rejects a
  // call, the table is lost. REQUIRES: called by the writer.
  void begin_change() { is_changing = true; }
  void end_change() { is_changing = false; }

  // Waits and returns the counters of the device, including those of this call.
  DeviceCounters read_counters(device::Stream stream);
  void settle(device::Stream stream, SettleCounters::Work work, const uint32_t* returned = nullptr);
  DeviceFreeLists free_lists(const uint32_t* returned) const;
  uint64_t row_budget() const;

  void check_count(int64_t count, const char* name = "count",
                   const char* remedy = "divide the call") const;
  void check_scores(const uint64_t* scores) const;
  void check_room(int64_t count, uint64_t num_missing, uint64_t size, const char* what) const;

  // ---- insertion (device_insert.cc) ----

  // The keys of a call that inserts or erases, looked up but not processed.
  struct Insertion {
    device::Stream stream = nullptr;
    const int64_t* keys = nullptr;
    uint64_t count = 0;
    device::Buffer numbers;    // (count) uint32: rows of existing keys
    device::Buffer missing;    // (count) uint8, only for updates
    device::Buffer heads;      // (count) uint32: heads of missing keys, num_heads for others
    device::Buffer positions;  // (count) uint32
    device::Buffer sorted_heads;
    device::Buffer sorted_positions;
    device::Buffer returned;   // (count) uint32, for tables with chains
    bool may_insert = true;
    uint64_t num_missing = 0;  // a maximum; exact if it was waited for
    uint64_t num_refused = 0;  // keys that the admission check rejected
    bool is_counted = false;   // whether num_missing is exact
    uint64_t most_overflow = 0;  // maximum number of overflow buckets that it may use

    SortedKeys sorted() const {
      return {sorted_heads.as<uint32_t>(), sorted_positions.as<uint32_t>(), count};
    }
  };
  // Resets the counters of a call, unless they were settled.
  class CallCounters;

  Insertion locate(const int64_t* keys, uint64_t count, device::Stream stream, bool for_update);
  void sort(Insertion& insertion);
  // Tables with chains: allocates all memory that the insertion needs, or throws.
  // `update`: calls the admission check.
  // `counted`: the counters since `insertion` was located; NULL: not read yet.
  void prepare_chained(Insertion& insertion, const char* what, SparringUpdate* update,
                       const DeviceCounters* counted = nullptr);
  // Removes keys that the caller does not admit from the missing ones.
  void admit(Insertion& insertion, SparringUpdate& update);
  // Allocates rows and heads for missing keys.
  void grow(Insertion& insertion, uint64_t size);
  void double_heads();
  // These can fail only because of the device.
  void insert_chained(Insertion& insertion, const uint64_t* scores);
  void touch_known(const Insertion& insertion, const uint64_t* scores);
  void scatter(const uint32_t* numbers, uint64_t count, const void* rows, uint64_t stride,
               device::Stream stream);
  void gather(const uint32_t* numbers, uint64_t count, const SparringColumns& columns, void* out,
              uint64_t stride, device::Stream stream);

  // ---- eviction (device_evict.cc) ----

  // The entries that an insertion evicts: arrays by position in the call, later compacted.
  struct Departures {
    uint64_t most = 0;  // 0: not requested
    device::Buffer leaves, keys, scores, sources;
    device::Buffer sums, positions, total;
    device::Buffer out_keys, out_rows, out_scores;

    DepartureArrays arrays() const {
      return {leaves.as<uint8_t>(), keys.as<int64_t>(), scores.as<uint64_t>(),
              sources.as<uint64_t>()};
    }
  };
  // `most`: 0 if the evicted rows are not requested.
  Departures prepare_departures(uint64_t count, uint64_t most, device::Stream stream);
  // Writes the rows of keys that remain to `numbers`.
  void insert_or_evict(Insertion& insertion, const uint64_t* scores, uint32_t* numbers,
                       const Departures& departures);
  // Waits, copies the evicted rows and returns their number.
  uint64_t collect_departures(Departures& departures, const void* call_rows, uint64_t call_stride,
                              void** made_at, uint64_t count, device::Stream stream);
  void hand_over(const SparringEvictionSink& sink, const Departures& departures, uint64_t num_left);
  static void check_taken(int32_t answer);
  void upsert_evicting(SparringUpsert& call);

  // ---- changing rows in place (device_update.cc) ----

  // Arrays for successive calls of `change`, device.
  struct Changes {
    device::Buffer sums, list, total;
    device::Buffer positions, rows, is_new;
  };
  Changes prepare_changes(uint64_t count, device::Stream stream);
  void list_keys(const Insertion& insertion, const Changes& changes, bool known_too, bool new_too);
  // For `count` keys of changes.list, or for all keys of the call.
  void change(SparringUpdate& call, const Insertion& insertion, const Changes& changes,
              uint64_t count, const uint32_t* numbers, void* const* made_at);
  // For keys that were located, with the counters `now`.
  void update_located(SparringUpdate& call, Insertion& insertion, const DeviceCounters& now,
                      CallCounters& counted);
  void update_evicting(SparringUpdate& call, Insertion& insertion, const DeviceCounters& now,
                       CallCounters& counted);
  void update_chained(SparringUpdate& call, Insertion& insertion, const DeviceCounters& now,
                      CallCounters& counted);

  // ---- reading and removing (device_scan.cc, device_erase.cc) ----

  void scan(SparringScan& call);
  void show(SparringVisit& call);
  // Prepares the erasure of existing keys and allocates all memory.
  Insertion prepare_erasure(const int64_t* keys, uint64_t count, device::Stream stream);
  // Waits and returns the number of erased keys.
  uint64_t finish_erasure(const Insertion& located);
  struct Lowest {
    device::Buffer keys, scores, numbers, rows;
  };
  Lowest find_lowest(uint64_t count, bool with_rows, device::Stream stream);

  device::Device& device;
  DeviceTableOptions options;
  DeviceLayout layout;
  Policy policy;
  device::Stream own_stream;
  std::unique_ptr<DeviceOrder> order;
  // Copies counters and totals to the host through pinned memory: a copy to other memory would wait.
  device::ReadBack to_host;
  device::Buffer counters_memory;
  DeviceCounters* counters;
  std::unique_ptr<DeviceIndex> index;
  std::unique_ptr<DeviceRows> rows;
  mutable ReaderWriterLock lock;
  bool is_changing = false;  // used by the writer

  // The counters read last, plus the maximum of later changes; and the number of keys
  // that were inserted since then without being counted.
  DeviceCounters known{};
  uint64_t num_unread = 0;

  std::mutex failure_mutex;
  std::string failure;  // a permanent failure; empty: none
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_STATE_H_
