// The device table: an index, rows and a policy on one device. Its methods are
// the callbacks of storage_abi.h for calls whose arrays lie on that device; here
// they throw StatusError instead of returning a status. DeviceStorage, one floor
// up, takes host arrays too.
//
// What the ABI leaves open where `call.device` is a GPU:
//   - Work is put on `call.stream` and has not happened when a method returns. The
//     arrays must live, and stay as they are, until the stream has passed.
//   - Arrays handed to `show`, `admit`, `change` and a sink's `receive` lie on the
//     device. Each of these is called once (`change` and `receive` at most once for
//     known and once for new rows), on the calling thread, and puts its own work on
//     `call.stream`; the arrays may be used by what is put there before it returns.
//
// Waiting for the device (what the host must know before it goes on):
//   find, visit, touch, upsert into a table that evicts, without a sink    never
//   upsert into a table that chains        once if the call could outgrow the memory
//                                          at hand, twice if overflow may be short
//   upsert that hands over what leaves     once, twice if anything is missing
//   update                                 once, and once more for each of: it evicts, it
//                                          asks for admission, overflow may be short
//   erase, evict, scan, stat               once or more: they return numbers
//
// Threads: everything may be called from any thread at any time. The lock is held
// while work is put on streams; events order the work itself (device_order.h).
//
// Errors: out of device memory, and a call that the device refused, leave the table
// unchanged and usable. A device that has failed stays so: it is remembered, and every
// later call refuses with it, as it does where the device refused a call amid a change.
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
  // Device memory that index and rows may take; rows beyond it lie in pinned host
  // memory. 0: all there is.
  uint64_t device_memory_bytes = 0;
  // Rows of an evict leave in rounds of so many bytes, and what a round needs stays small.
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
  // As Table::set_option.
  void set_option(const char* name, const char* value);

  // Runs `body`, which may use the device. Its failures become StatusErrors that
  // begin with `what`, and those of the device itself are remembered.
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
