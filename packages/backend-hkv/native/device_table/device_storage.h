// A DeviceTable as a storage: calls with arrays on its device are forwarded. Calls with host
// arrays are staged on the table's own stream, and are done when they return.
// make_storage<DeviceStorage> provides the C ABI.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_STORAGE_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_STORAGE_H_

#include <memory>
#include <utility>

#include "device/read_back.h"
#include "device_table.h"

namespace sparring::hkv {

class DeviceStorage {
 public:
  static constexpr const char* kOutOfMemory =
      "the system has no more memory for this call; the table is unchanged";

  // `place`: the device as named in calls. Throws like DeviceTable.
  DeviceStorage(std::shared_ptr<device::Device> device, const SparringDevice& place,
                const DeviceTableOptions& options)
      : device_(std::move(device)), place_(place), departing_(device_), table_(*device_, options) {}

  uint64_t row_bytes() const { return table_.row_bytes(); }
  bool keeps_scores() const { return table_.keeps_scores(); }
  // Throws StatusError for a device that is neither the CPU nor the table's device.
  void check_device(const SparringCall& call) const;

  void find(SparringFind& call);
  void visit(SparringVisit& call);
  void scan(SparringScan& call);
  void stat(SparringStat& call) { table_.stat(call); }
  void upsert(SparringUpsert& call);
  void update(SparringUpdate& call);
  void erase(SparringErase& call);
  void clear() { table_.clear(); }
  void touch(SparringTouch& call);
  void evict(SparringEvict& call);
  void set_option(const char* name, const char* value) { table_.set_option(name, value); }

  device::Device& device() { return *device_; }
  DeviceTable& table() { return table_; }

 private:
  class Staging;

  std::shared_ptr<device::Device> device_;
  SparringDevice place_;
  device::ReadBack departing_;  // for evicted rows that are copied to the host
  DeviceTable table_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_STORAGE_H_
