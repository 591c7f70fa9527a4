// The order of work on several streams that meet in one table: a write comes
// after all reads and writes that were put on any stream before it, a read after
// the last write. Events do it; no thread waits. Work on one stream is ordered so, too:
// a stream that was given back may come again under its address, before its
// work is done.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_ORDER_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_ORDER_H_

#include <map>
#include <mutex>

#include "device/memory.h"

namespace sparring::hkv {

// Threads: reads concurrently, a write alone.
class DeviceOrder {
 public:
  explicit DeviceOrder(device::Device& device);
  ~DeviceOrder();
  DeviceOrder(const DeviceOrder&) = delete;
  DeviceOrder& operator=(const DeviceOrder&) = delete;

  // Around what is put on `stream`. A failed device makes begin throw DeviceError.
  void begin_read(device::Stream stream);
  void end_read(device::Stream stream);
  void begin_write(device::Stream stream);
  void end_write(device::Stream stream);

  // What comes on `later` runs after what is on `earlier` now.
  void pass(device::Stream earlier, device::Stream later);

 private:
  device::Device& device_;
  std::mutex mutex_;
  // One event a stream, recorded after its last read; null where it has none
  // since the last write.
  struct Reader {
    device::Event event;
    bool has_read;
  };
  std::map<device::Stream, Reader> readers_;
  device::Event last_write_;
  bool was_written_ = false;
  device::Event passing_;
};

// While it lives, `own` may change what work on `stream` uses: it comes after
// what is on `stream` now, and `stream` goes on after it.
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
