// A device's memory and streams, behind an interface: CUDA's, or the host's for
// the emulator, which can fail on demand.
//
// Streams order everything here that takes one. Nothing waits for the device
// but the functions named wait_*, and allocate_pinned / free_pinned.
//
// Ownership: who allocates frees, on a stream that comes after the last use.
// Threads: all functions from any thread; a Buffer from one at a time.
#ifndef SPARRING_HKV_DEVICE_MEMORY_H_
#define SPARRING_HKV_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace sparring::device {

// cudaStream_t and cudaEvent_t, without their header. A null stream is the
// device's default stream.
using Stream = void*;
using Event = void*;

// The device refused a call, and did nothing of it; it goes on.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device has failed, and stays so in this process: a lost GPU, a kernel that went astray.
// What was put on it before may not have happened.
class DeviceLost : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// Nothing may be put on the stream that was handed over, and nothing was. Says whose stream it is,
// and what to hand over.
class StreamRefused : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

class OutOfDeviceMemory : public std::runtime_error {
 public:
  // `used_for`: what the driver needed it for, which does not say how much.
  OutOfDeviceMemory(uint64_t asked, uint64_t available, const std::string& used_for = "")
      : std::runtime_error(std::to_string(asked) + " bytes of device memory were asked for, " +
                           std::to_string(available) + " are free"),
        asked_bytes(asked),
        free_bytes(available),
        note(used_for.empty() ? "" : " (" + used_for + "; the driver does not say how many)") {}
  uint64_t asked_bytes;
  uint64_t free_bytes;
  std::string note;  // to be said behind the numbers
};

struct MemoryInfo {
  uint64_t free_bytes;
  uint64_t total_bytes;
};

// What memory is for. A table's rows and index last, and are taken and given back seldom; the
// memory of a call is temporary, and taken again by each call. The two are separate, so that
// neither keeps the other's memory from being given back.
enum class Lifetime { kTemporary, kLasting };

// What was taken of a device and not given back.
struct MemoryUse {
  uint64_t lasting_bytes;
  uint64_t temporary_bytes;
  uint64_t kept_bytes;  // given back, and kept for the next call
};

class HostWrites;

class Device {
 public:
  Device();
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // "cuda:0", "emulated"
  virtual std::string name() const = 0;
  // For the size of grids that stride.
  virtual unsigned num_multiprocessors() const = 0;
  virtual MemoryInfo memory() const = 0;
  // Makes it the calling thread's device, as every function here does itself.
  virtual void use() const = 0;

  // Throws DeviceLost if the device has failed.
  virtual void check() const = 0;

  // At least 256-byte aligned; the content is undefined. 0 bytes: null.
  // Throws OutOfDeviceMemory, DeviceError.
  virtual void* allocate(size_t num_bytes, Stream stream,
                         Lifetime lifetime = Lifetime::kTemporary) = 0;
  virtual void free(void* memory, size_t num_bytes, Stream stream,
                    Lifetime lifetime = Lifetime::kTemporary) noexcept = 0;
  // Without pinned memory.
  virtual MemoryUse memory_use() const = 0;
  // Host memory that kernels reach at the same address. Throws OutOfDeviceMemory.
  virtual void* allocate_pinned(size_t num_bytes) = 0;
  virtual void free_pinned(void* memory, size_t num_bytes) noexcept = 0;

  // Between any two of device, pinned and plain host memory, all of which must last until the
  // stream is there; what is written to plain memory is there after wait().
  virtual void copy(void* to, const void* from, size_t num_bytes, Stream stream) = 0;
  // From host memory, which is read before the call returns.
  void write(void* to, const void* from, size_t num_bytes, Stream stream);
  virtual void fill(void* memory, unsigned char byte, size_t num_bytes, Stream stream) = 0;

  virtual Stream make_stream() = 0;
  virtual void free_stream(Stream stream) noexcept = 0;
  // Returns when everything on the stream is done. Throws DeviceError.
  virtual void wait(Stream stream) = 0;
  // Throws StreamRefused where the stream is another device's. Does nothing on the stream.
  virtual void check_stream_device(Stream stream) const = 0;
  // Throws StreamRefused while the stream is captured into a graph, or where use of it would end
  // another one's capture. Ends no capture itself.
  virtual void check_stream_capture(Stream stream) const = 0;

  // Before work is put on a caller's stream. Throws StreamRefused as both do.
  void check_stream(Stream stream) const {
    check_stream_device(stream);
    check_stream_capture(stream);
  }

  virtual Event make_event() = 0;
  virtual void free_event(Event event) noexcept = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait_event(Event event) = 0;
  virtual bool is_done(Event event) = 0;
  // Later work on `stream` runs after the event; the calling thread does not wait.
  virtual void order_after(Event event, Stream stream) = 0;
  // `call(argument)` on a thread of the device's choice once the stream is
  // there. It must not use the device.
  virtual void call_on_host(Stream stream, void (*call)(void*), void* argument) = 0;

  // The number of the calling thread's device, which `use` changes, and the way back.
  virtual int current() const = 0;
  virtual void make_current(int number) const noexcept = 0;

  // Gives back to the device what others keep of its memory without using it, and returns whether
  // there was any. Called by an allocation that finds no memory, once, before it fails; from any
  // thread, under whatever locks the caller of `allocate` holds. It takes no memory here.
  using Reclaimer = std::function<bool()>;
  // An empty one: there is none to call. A call that is running meanwhile ends later.
  void set_reclaimer(Reclaimer reclaimer);

 protected:
  bool reclaim();
  // Gives back what `write` has kept: the first thing in a destructor.
  void end_writes() noexcept;

 private:
  std::mutex writes_mutex_;
  std::unique_ptr<HostWrites> writes_;  // NULL: nothing was written yet
  std::mutex reclaimer_mutex_;
  std::shared_ptr<const Reclaimer> reclaimer_;
};

inline void Device::set_reclaimer(Reclaimer reclaimer) {
  auto next = reclaimer ? std::make_shared<const Reclaimer>(std::move(reclaimer)) : nullptr;
  const std::lock_guard<std::mutex> lock(reclaimer_mutex_);
  reclaimer_.swap(next);  // the old one ends after the lock
}

inline bool Device::reclaim() {
  std::shared_ptr<const Reclaimer> chosen;
  {
    const std::lock_guard<std::mutex> lock(reclaimer_mutex_);
    chosen = reclaimer_;
  }
  return chosen != nullptr && (*chosen)();
}

// Makes a device the calling thread's, and puts back the one before at the end.
class InUse {
 public:
  explicit InUse(const Device& device) : device_(device), before_(device.current()) {
    device.use();
  }
  ~InUse() { device_.make_current(before_); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  const Device& device_;
  int before_;
};

// Device memory of one stream, freed with it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, size_t num_bytes, Stream stream,
         Lifetime lifetime = Lifetime::kTemporary)
      : device_(&device),
        stream_(stream),
        lifetime_(lifetime),
        num_bytes_(num_bytes),
        memory_(device.allocate(num_bytes, stream, lifetime)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(stream_, other.stream_);
    std::swap(lifetime_, other.lifetime_);
    std::swap(num_bytes_, other.num_bytes_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Buffer() {
    if (memory_ != nullptr) device_->free(memory_, num_bytes_, stream_, lifetime_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  size_t num_bytes() const { return num_bytes_; }

 private:
  Device* device_ = nullptr;
  Stream stream_ = nullptr;
  Lifetime lifetime_ = Lifetime::kTemporary;
  size_t num_bytes_ = 0;
  void* memory_ = nullptr;
};

// (count) elements of T.
template <class T>
Buffer make_buffer(Device& device, size_t count, Stream stream,
                   Lifetime lifetime = Lifetime::kTemporary) {
  return Buffer(device, count * sizeof(T), stream, lifetime);
}

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_MEMORY_H_
