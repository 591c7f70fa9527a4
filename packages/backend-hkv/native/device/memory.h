// An interface for the memory and streams of a device: CUDA, or the host for the
// emulator, which can inject failures.
//
// All functions that take a stream are ordered by it. Only the functions named
// wait_*, allocate_pinned and free_pinned wait for the device.
//
// Ownership: memory is freed by the code that allocated it, on a stream that is
// ordered after the last use.
// Threads: all functions are thread-safe; a Buffer is used by one thread at a time.
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

// cudaStream_t and cudaEvent_t, without including their header. A null stream is
// the device's default stream.
using Stream = void*;
using Event = void*;

// The device rejected a call and did nothing; it remains usable.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device has failed permanently for this process: the GPU was lost, or a kernel made an invalid
// access. Work enqueued before may not have been done.
class DeviceLost : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// The stream cannot be used, and no work was enqueued on it. The message names the owner of the
// stream
// and a stream to use instead.
class StreamRefused : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

class OutOfDeviceMemory : public std::runtime_error {
 public:
  // `used_for`: purpose for which the driver needed memory, if the amount is unknown.
  OutOfDeviceMemory(uint64_t asked, uint64_t available, const std::string& used_for = "")
      : std::runtime_error(std::to_string(asked) + " bytes of device memory were asked for, " +
                           std::to_string(available) + " are free"),
        asked_bytes(asked),
        free_bytes(available),
        note(used_for.empty() ? "" : " (" + used_for + "; the driver does not report the amount)") {}
  uint64_t asked_bytes;
  uint64_t free_bytes;
  std::string note;  // appended to the message
};

struct MemoryInfo {
  uint64_t free_bytes;
  uint64_t total_bytes;
};

// How long memory is used. The rows and index of a table are lasting: they are allocated and freed
// seldom. The memory of a call is temporary and allocated again by each call. They are separate, so
// that neither prevents the release of the other.
enum class Lifetime { kTemporary, kLasting };

// Memory that was allocated on a device and not freed.
struct MemoryUse {
  uint64_t lasting_bytes;
  uint64_t temporary_bytes;
  uint64_t kept_bytes;  // freed, and kept for the next call
};

class HostWrites;

class Device {
 public:
  Device();
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // For example "cuda:0" or "emulated".
  virtual std::string name() const = 0;
  // For the size of grids with a grid-stride loop.
  virtual unsigned num_multiprocessors() const = 0;
  virtual MemoryInfo memory() const = 0;
  // Makes it the calling thread's device. All functions here do so themselves.
  virtual void use() const = 0;

  // Throws DeviceLost if the device has failed.
  virtual void check() const = 0;

  // At least 256-byte aligned; the content is undefined. Returns null for 0 bytes.
  // Throws OutOfDeviceMemory, DeviceError.
  virtual void* allocate(size_t num_bytes, Stream stream,
                         Lifetime lifetime = Lifetime::kTemporary) = 0;
  virtual void free(void* memory, size_t num_bytes, Stream stream,
                    Lifetime lifetime = Lifetime::kTemporary) noexcept = 0;
  // Does not include pinned memory.
  virtual MemoryUse memory_use() const = 0;
  // Host memory that kernels access at the same address. Throws OutOfDeviceMemory.
  virtual void* allocate_pinned(size_t num_bytes) = 0;
  virtual void free_pinned(void* memory, size_t num_bytes) noexcept = 0;

  // Copies between any two of device, pinned and pageable host memory, which must stay valid until
  // the stream has executed the copy. Data copied to pageable memory are available after wait().
  virtual void copy(void* to, const void* from, size_t num_bytes, Stream stream) = 0;
  // Copies from host memory, which is read before the call returns.
  void write(void* to, const void* from, size_t num_bytes, Stream stream);
  virtual void fill(void* memory, unsigned char byte, size_t num_bytes, Stream stream) = 0;

  virtual Stream make_stream() = 0;
  virtual void free_stream(Stream stream) noexcept = 0;
  // Waits until all work on the stream is done. Throws DeviceError.
  virtual void wait(Stream stream) = 0;
  // Throws StreamRefused if the stream belongs to another device. Enqueues nothing.
  virtual void check_stream_device(Stream stream) const = 0;
  // Throws StreamRefused while the stream is being captured into a graph, or if its use would
  // invalidate the capture of another stream. Does not invalidate a capture itself.
  virtual void check_stream_capture(Stream stream) const = 0;

  // Must be called before work is enqueued on a caller's stream. Throws StreamRefused like both.
  void check_stream(Stream stream) const {
    check_stream_device(stream);
    check_stream_capture(stream);
  }

  virtual Event make_event() = 0;
  virtual void free_event(Event event) noexcept = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait_event(Event event) = 0;
  virtual bool is_done(Event event) = 0;
  // Orders later work on `stream` after the event, without waiting on the calling thread.
  virtual void order_after(Event event, Stream stream) = 0;
  // Calls `call(argument)` on a thread of the device's choice when the stream
  // reaches it. The call must not use the device.
  virtual void call_on_host(Stream stream, void (*call)(void*), void* argument) = 0;

  // The number of the calling thread's device, which `use` changes, and a function that restores it.
  virtual int current() const = 0;
  virtual void make_current(int number) const noexcept = 0;

  // Releases device memory that others keep without using it, and returns whether there was any. An
  // allocation that finds no memory calls it once before it fails, on any thread and under the locks
  // of the caller of `allocate`. It must not allocate memory here.
  using Reclaimer = std::function<bool()>;
  // An empty function removes the reclaimer. A call in progress may end later.
  void set_reclaimer(Reclaimer reclaimer);

 protected:
  bool reclaim();
  // Frees the buffers of `write`; destructors must call it first.
  void end_writes() noexcept;

 private:
  std::mutex writes_mutex_;
  std::unique_ptr<HostWrites> writes_;  // NULL until the first write
  std::mutex reclaimer_mutex_;
  std::shared_ptr<const Reclaimer> reclaimer_;
};

inline void Device::set_reclaimer(Reclaimer reclaimer) {
  auto next = reclaimer ? std::make_shared<const Reclaimer>(std::move(reclaimer)) : nullptr;
  const std::lock_guard<std::mutex> lock(reclaimer_mutex_);
  reclaimer_.swap(next);  // the old one is destroyed after the lock is released
}

inline bool Device::reclaim() {
  std::shared_ptr<const Reclaimer> chosen;
  {
    const std::lock_guard<std::mutex> lock(reclaimer_mutex_);
    chosen = reclaimer_;
  }
  return chosen != nullptr && (*chosen)();
}

// Makes a device the calling thread's, and restores the previous one at the end.
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

// Device memory that is allocated and freed on one stream.
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
