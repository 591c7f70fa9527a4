// The device table: an index, rows and a policy on one device. Its methods are the
// callbacks of storage_abi.h for calls with arrays on that device; here they throw
// StatusError instead of returning a status. DeviceStorage also accepts host arrays.
//
// Details that the ABI leaves open if `call.device` is a GPU:
//   - Work is enqueued on `call.stream` and is not done when a method returns. The arrays
//     must stay alive and unchanged until the stream has executed it.
//   - Arrays passed to `show`, `admit`, `change` and a sink's `receive` are on the device.
//     Each callback is called once (`change` and `receive` at most once for existing and
//     once for new rows), on the calling thread, and enqueues its work on `call.stream`.
//     Work enqueued before it returns may use the arrays.
//
// Waits for the device (if the host needs a result before it continues):
//   find, visit, touch, upsert into a table that evicts, without a sink    never
//   upsert into a table with chains        once if the call might exceed the allocated
//                                          memory, twice if overflow buckets may be short
//   upsert that returns evicted rows       once, twice if keys are missing
//   update                                 once, and once more for each of: it evicts, it
//                                          checks admission, overflow may be short
//   erase, evict, scan, stat               at least once: they return counts
//
// Threads: all methods are thread-safe. The lock is held while work is enqueued; events
// order the work itself (device_order.h).
//
// Errors: if memory is exhausted or the device rejects a call, the table is unchanged and
// usable. If the device has failed, or rejected a call in the middle of a change, the
// failure is remembered, and every later call fails with it.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_TABLE_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/memory.h"
#include "layout.h"
#include "sparring/storage_abi.h"

namespace sparring::hkv {

struct DeviceTableOptions {
  TableOptions table;
  // Maximum device memory of index and rows; rows beyond it are stored in pinned host
  // memory. 0: unlimited.
  uint64_t device_memory_bytes = 0;
  // Bytes of rows per round of an evict, to limit the memory of a round.
  uint64_t round_bytes = uint64_t{256} << 20;
};

class DeviceTable {
 public:
  // Throws StatusError for contradicting options, OutOfDeviceMemory, DeviceError.
  DeviceTable(device::Device& device, const DeviceTableOptions& options);
  ~DeviceTable();

  uint64_t row_bytes() const;
  bool keeps_scores() const;
  // The table's own stream.
  device::Stream stream() const;

  void find(SparringFind& call);
  void visit(SparringVisit& call);
  void scan(SparringScan& call);
  void stat(SparringStat& call);

  void upsert(SparringUpsert& call);
  void update(SparringUpdate& call);
  void erase(SparringErase& call);
  void clear();
  // REQUIRES: keeps_scores().
  void touch(SparringTouch& call);
  void evict(SparringEvict& call);
  // See Table::set_option.
  void set_option(const char* name, const char* value);

  // Runs `body`, which may use the device. Its failures become StatusErrors that start
  // with `what`, and permanent failures of the device are remembered.
  void guard(const std::string& what, const std::function<void()>& body);

  // Bytes of rows in pinned host memory.
  uint64_t pinned_bytes() const;

  // Calls of several tables: device_tables.h.
  struct Together;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_TABLE_H_
