// Host memory that emulates device memory, for kernels on the emulator. Work on a
// stream is done when the call returns or, with Timing::kLate, only when it is
// waited for: see late_work.h.
//
// New and freed memory is filled with poison (0xd7). The 64 bytes before and
// after each allocation must stay unchanged: if they were overwritten, free()
// ends the process with a message.
#ifndef SPARRING_HKV_DEVICE_EMULATED_DEVICE_H_
#define SPARRING_HKV_DEVICE_EMULATED_DEVICE_H_

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "device_scope.h"
#include "emulated_streams.h"
#include "kernel_list.h"
#include "late_work.h"
#include "launch_batch.h"
#include "memory.h"

namespace sparring::device {

// The runtime functions of `DeviceScope`.
struct EmulatedRuntime {
  inline static thread_local int number = 0;
  static int current() { return number; }
  static void choose(int chosen) { number = chosen; }
  static bool has_context(int) { return true; }
  static int exchange_capture_mode(int mode) {
    return std::exchange(EmulatedStreams::capture_mode, mode);
  }
};

class EmulatedDevice : public Device {
 public:
  static constexpr unsigned char poison = 0xd7;

  // Devices with the same number share their streams.
  explicit EmulatedDevice(uint64_t total_bytes = uint64_t{1} << 40, int number = 0)
      : total_bytes_(total_bytes),
        number_(number),
        loaded_kernels_(all_kernels().begin(), all_kernels().end()) {}
  // Creates a device with late streams. Arrays of callers must be memory of this device.
  static std::unique_ptr<EmulatedDevice> make_late(uint64_t seed);
  // Ends the process if memory was not freed.
  ~EmulatedDevice() override;

  std::string name() const override { return emulated_name(number_); }
  unsigned num_multiprocessors() const override { return 2; }
  MemoryInfo memory() const override;
  void use() const override { EmulatedRuntime::choose(number_); }
  void check() const override;
  // Called before a kernel is enqueued on a stream.
  // `kernel`: an element of all_kernels(); NULL for a library kernel, which is always loaded.
  void begin_launch(Stream stream, const void* kernel = nullptr, const char* name = "");
  // Runs `work` now, or when the stream reaches it.
  template <class Work>
  void put(Stream stream, const Work& work) {
    if (late_ == nullptr) return work();
    late_->put(stream, work);
  }

  void* allocate(size_t num_bytes, Stream stream,
                 Lifetime lifetime = Lifetime::kTemporary) override;
  void free(void* memory, size_t num_bytes, Stream stream,
            Lifetime lifetime = Lifetime::kTemporary) noexcept override;
  MemoryUse memory_use() const override;
  void* allocate_pinned(size_t num_bytes) override;
  void free_pinned(void* memory, size_t num_bytes) noexcept override;

  void copy(void* to, const void* from, size_t num_bytes, Stream stream) override;
  void fill(void* memory, unsigned char byte, size_t num_bytes, Stream stream) override;

  Stream make_stream() override;
  void free_stream(Stream stream) noexcept override;
  void wait(Stream stream) override;
  void check_stream_device(Stream stream) const override { streams.check_device(stream, number_); }
  void check_stream_capture(Stream stream) const override { streams.check_capture(stream); }

  Event make_event() override;
  void free_event(Event event) noexcept override;
  void record(Event event, Stream stream) override;
  void wait_event(Event event) override;
  bool is_done(Event event) override {
    const Using here(number_);
    check();
    streams.use_unsafely();
    return late_ == nullptr || late_->is_done(event);
  }
  void order_after(Event event, Stream stream) override {
    LaunchBatch::flush_current();
    check();
    streams.use(stream);
    if (late_ != nullptr) late_->order_after(event, stream);
  }
  void call_on_host(Stream stream, void (*call)(void*), void* argument) override {
    LaunchBatch::flush_current();
    check();
    put(stream, [call, argument] { call_from_driver(call, argument); });
  }

  int current() const override { return EmulatedRuntime::current(); }
  void make_current(int number) const noexcept override { put_back<EmulatedRuntime>(number); }
  // The streams of all emulated devices of this process.
  inline static EmulatedStreams streams;

  // ---- for tests ----

  // The n-th allocation from now on, and all later ones, fail; -1: none fail.
  void fail_from(int64_t allocation);
  // The n-th call from now on that would use a GPU (allocations, copies, fills, launches, waits)
  // throws DeviceError, but not those after it; -1: none fail.
  void refuse_once(int64_t call);
  // Every call that would use a GPU throws DeviceLost with this text from now on; an empty text ends
  // this.
  void break_down(std::string message);
  // Each kernel is loaded again at its next launch, which needs memory like an allocation.
  void unload_kernels();
  // Waits for the device take this long from now on.
  void slow_down(std::chrono::milliseconds wait);
  // Number of copies of uninitialized bytes out of this memory so far.
  uint64_t num_unwritten_copies() const;
  // Number of kernels launched so far, with one per library function (algorithms.h); copies; fills.
  uint64_t num_launches() const;
  uint64_t num_copies() const;
  uint64_t num_fills() const;
  // Number of allocations so far that may make a GPU wait: lasting and pinned ones.
  uint64_t num_lasting_allocations() const;
  // Number of events recorded so far.
  uint64_t num_records() const;
  // Number of times pinned memory was freed while a stream had unfinished work.
  uint64_t num_early_frees() const;
  // Number of waits for the device so far.
  uint64_t num_waits() const;
  // The same for all emulated devices of this process.
  static uint64_t num_waits_of_all();

 private:
  using Using = DeviceScope<EmulatedRuntime>;
  enum class Kind { kTemporary, kLasting, kPinned };
  static Kind kind_of(Lifetime lifetime) {
    return lifetime == Lifetime::kLasting ? Kind::kLasting : Kind::kTemporary;
  }

  // Calls on a thread that exists until the process ends, like a driver's; returns when the call
  // ends.
  static void call_from_driver(void (*call)(void*), void* argument);
  void* allocate_piece(size_t num_bytes, Kind kind);
  // Returns NULL if there is no free memory, and sets `free_bytes` to the free amount.
  void* take_piece(size_t num_bytes, Kind kind, uint64_t* free_bytes);
  bool is_device_memory(const void* address) const;
  void free_piece(void* memory, size_t num_bytes, Kind kind) noexcept;
  // Device or pinned memory that contains the address; NULL if there is none.
  const std::pair<size_t, Kind>* piece_of(const void* address) const;
  void copy_now(void* to, const void* from, size_t num_bytes);
  // Every call that would use a GPU calls this first.
  // `doing`: description for the message.
  void reach_locked(const std::string& doing = "a call");
  void count_wait();

  mutable std::mutex mutex_;
  std::unique_ptr<LateWork> late_;  // NULL: all work is done at once
  uint64_t total_bytes_;
  int number_;
  std::set<const void*> loaded_kernels_;
  MemoryUse use_{};
  int64_t allocations_left_ = -1;
  int64_t calls_left_ = -1;
  bool has_work_ = false;  // since the last wait
  uint64_t num_unwritten_copies_ = 0;
  uint64_t num_early_frees_ = 0;
  uint64_t num_records_ = 0;
  uint64_t num_launches_ = 0;
  uint64_t num_copies_ = 0;
  uint64_t num_fills_ = 0;
  uint64_t num_lasting_allocations_ = 0;
  uint64_t num_waits_ = 0;
  std::chrono::milliseconds wait_time_{0};
  std::string breakdown_;
  std::map<void*, std::pair<size_t, Kind>> pieces_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_EMULATED_DEVICE_H_
