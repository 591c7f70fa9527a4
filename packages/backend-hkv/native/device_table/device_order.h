// The order of work on several streams that use one table: a write runs after all
// reads and writes that were enqueued on any stream before it, a read after the last
// write. Events implement this; no thread waits. Work on one stream is ordered with
// events too, because a new stream may have the address of a destroyed one whose work
// is not done.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_ORDER_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_ORDER_H_

#include <map>
#include <mutex>

#include "device/memory.h"

namespace sparring::hkv {

// Threads: reads may run concurrently, a write is exclusive.
class DeviceOrder {
 public:
  explicit DeviceOrder(device::Device& device);
  ~DeviceOrder();
  DeviceOrder(const DeviceOrder&) = delete;
  DeviceOrder& operator=(const DeviceOrder&) = delete;

  // Surround the enqueueing of work on `stream`. If the device has failed, begin throws DeviceError.
  void begin_read(device::Stream stream);
  void end_read(device::Stream stream);
  void begin_write(device::Stream stream);
  void end_write(device::Stream stream);

  // Orders later work on `later` after the present work on `earlier`.
  void pass(device::Stream earlier, device::Stream later);

 private:
  device::Device& device_;
  std::mutex mutex_;
  // One event per stream, recorded after its last read; null if it has not read since
  // the last write.
  struct Reader {
    device::Event event;
    bool has_read;
  };
  std::map<device::Stream, Reader> readers_;
  device::Event last_write_;
  bool was_written_ = false;
  device::Event passing_;
};

// While it exists, work on `own` may change data that work on `stream` uses: it runs after
// the present work on `stream`, and later work on `stream` runs after it.
class Detour {
 public:
  Detour(DeviceOrder& order, device::Stream stream, device::Stream own)
      : order_(order), stream_(stream), own_(own) {
    order_.pass(stream, own);
  }
  ~Detour();
  Detour(const Detour&) = delete;
  Detour& operator=(const Detour&) = delete;

 private:
  DeviceOrder& order_;
  device::Stream stream_;
  device::Stream own_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_ORDER_H_
