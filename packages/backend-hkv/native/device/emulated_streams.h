// Devices of emulated streams, and which streams are being captured into a graph, so that tests can
// reproduce errors of CUDA.
#ifndef SPARRING_HKV_DEVICE_EMULATED_STREAMS_H_
#define SPARRING_HKV_DEVICE_EMULATED_STREAMS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "memory.h"

namespace sparring::device {

inline std::string emulated_name(int number) {
  return number == 0 ? "emulated" : "emulated:" + std::to_string(number);
}

// Threads: all functions are thread-safe. A stream that was not added, including the default stream,
// belongs to every device.
class EmulatedStreams {
 public:
  void add(Stream stream, int device);
  void remove(Stream stream) noexcept;

  // See Device::check_stream_device and Device::check_stream_capture.
  void check_device(Stream stream, int device) const;
  void check_capture(Stream stream) const;

  // Emulates enqueueing work on a GPU: throws DeviceError if the stream belongs to another device or
  // is being captured, which invalidates the capture. Copies, waits and the order of streams may
  // involve streams of any device.
  void use(Stream stream);
  void use(Stream stream, int device);

  // Emulates a call that CUDA considers unsafe during a capture: it waits, queries an event, or
  // allocates or frees pinned memory. Throws DeviceError and invalidates captures depending on the
  // mode of the calling thread: all captures, only those of this thread (mode 1, thread-local), or
  // none (relaxed).
  void use_unsafely();
  // The mode of the calling thread; 0: global, CUDA's default.
  inline static thread_local int capture_mode = 0;

  // Number of times work was enqueued on the default stream, which on a GPU synchronizes with
  // others.
  uint64_t num_default_uses() const;

  void begin_capture(Stream stream);
  // Whether the capture is still valid.
  bool end_capture(Stream stream);

 private:
  struct Known {
    int device = 0;
    bool is_captured = false;
    bool is_spoilt = false;
    std::thread::id captures{};  // the thread that started the capture
  };
  // Returns the state of a stream.
  Known find(Stream stream) const;

  mutable std::mutex mutex_;
  std::map<Stream, Known> streams_;
  uint64_t num_default_uses_ = 0;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_EMULATED_STREAMS_H_
