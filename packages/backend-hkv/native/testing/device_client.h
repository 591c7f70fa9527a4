// A client of a device table on the emulator, with host arrays or with arrays that it
// declares to be on the device. On the emulator, device arrays may be anywhere.
#ifndef SPARRING_HKV_TESTING_DEVICE_CLIENT_H_
#define SPARRING_HKV_TESTING_DEVICE_CLIENT_H_

#include <memory>
#include <utility>

#include "client.h"
#include "device_storage.h"
#include "emulated_device.h"
#include "sparring/storage_border.h"

namespace sparring::hkv::testing {

inline constexpr SparringDevice kGpu{2, 0};

class DeviceClient : public Client {
 public:
  explicit DeviceClient(const DeviceTableOptions& options,
                        uint64_t device_bytes = uint64_t{1} << 40)
      : DeviceClient(std::make_shared<DeviceStorage>(
                         std::make_shared<device::EmulatedDevice>(device_bytes), kGpu, options),
                     options.table.row_bytes) {}

  device::EmulatedDevice& device() {
    return static_cast<device::EmulatedDevice&>(storage_->device());
  }
  const DeviceTable& table() const { return storage_->table(); }

 private:
  DeviceClient(std::shared_ptr<DeviceStorage> storage, uint64_t row_bytes)
      : Client(border::make_storage<DeviceStorage>(storage, "test 0.1.0"), row_bytes),
        storage_(std::move(storage)) {}

  std::shared_ptr<DeviceStorage> storage_;
};

inline DeviceTableOptions device_options(uint64_t row_bytes, int64_t capacity = -1,
                                         PolicyKind policy = PolicyKind::kNone) {
  DeviceTableOptions options;
  options.table.row_bytes = row_bytes;
  options.table.capacity = capacity;
  options.table.policy = policy;
  return options;
}

}  // namespace sparring::hkv::testing

#endif  // SPARRING_HKV_TESTING_DEVICE_CLIENT_H_
