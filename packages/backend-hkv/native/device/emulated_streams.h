// Whose the streams of emulated devices are, and which of them are captured into a graph, so that
// tests meet what CUDA refuses.
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

// Threads: everything from any thread. A stream that was not added, the default one included,
// belongs to every device.
class EmulatedStreams {
 public:
  void add(Stream stream, int device);
  void remove(Stream stream) noexcept;

  // As Device::check_stream_device and Device::check_stream_capture.
  void check_device(Stream stream, int device) const;
  void check_capture(Stream stream) const;

  // What a GPU does that is handed work: it throws DeviceError where the stream is captured, whose
  // capture is spoilt then, or another device's. Copies, waits and the order of streams may
  // concern any device's.
  void use(Stream stream);
  void use(Stream stream, int device);

  // A call that CUDA counts as unsafe while a graph is captured: it waits, asks for an event, or
  // takes or frees pinned memory. Throws DeviceError, and spoils the captures that the calling
  // thread's mode makes it meet: all of them, but for those of other threads where it is 1
  // (thread-local); none where it is relaxed.
  void use_unsafely();
  // The calling thread's; 0: global, CUDA's default.
  inline static thread_local int capture_mode = 0;

  // How often the default stream was given work: on a GPU it waits for others, and they for it.
  uint64_t num_default_uses() const;

  void begin_capture(Stream stream);
  // Whether nothing has spoilt it.
  bool end_capture(Stream stream);

 private:
  struct Known {
    int device = 0;
    bool is_captured = false;
    bool is_spoilt = false;
    std::thread::id captures{};  // the thread that began it
  };
  // What is known of a stream.
  Known find(Stream stream) const;

  mutable std::mutex mutex_;
  std::map<Stream, Known> streams_;
  uint64_t num_default_uses_ = 0;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_EMULATED_STREAMS_H_
