#include "emulated_device.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <thread>
#include <vector>

namespace sparring::device {
namespace {

constexpr size_t alignment = 256;
constexpr size_t border_bytes = 256;  // a multiple of the alignment; 64 of them are checked
constexpr size_t watched_bytes = 64;
constexpr unsigned char border = 0xb9;

std::atomic<uint64_t> waits_of_all{0};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated device: %s\n", what);
  std::abort();
}

// Whether there are sixteen consecutive bytes of poison. Written data contain them with a
// probability
// of 2^-128.
bool has_poison(const unsigned char* bytes, size_t num_bytes) {
  size_t run = 0;
  for (size_t i = 0; i < num_bytes; ++i) {
    run = bytes[i] == EmulatedDevice::poison ? run + 1 : 0;
    if (run == 16) return true;
  }
  return false;
}

// The thread on which the driver makes host calls.
class HostCalls {
 public:
  // Never destroyed, like the thread of a driver.
  static HostCalls& process() {
    static HostCalls* const calls = new HostCalls;
    return *calls;
  }

  void run(void (*call)(void*), void* argument) {
    std::unique_lock lock(mutex_);
    waiting_.emplace_back(call, argument);
    const uint64_t number = ++num_given_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return num_ended_ >= number; });
  }

 private:
  HostCalls() {
    std::thread([this] { work(); }).detach();
  }

  [[noreturn]] void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !waiting_.empty(); });
      const auto [call, argument] = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      call(argument);
      lock.lock();
      ++num_ended_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<void (*)(void*), void*>> waiting_;
  uint64_t num_given_ = 0;
  uint64_t num_ended_ = 0;
};

bool is_border(const unsigned char* bytes) {
  return std::all_of(bytes, bytes + watched_bytes,
                     [](unsigned char byte) { return byte == border; });
}

}  // namespace

std::unique_ptr<EmulatedDevice> EmulatedDevice::make_late(uint64_t seed) {
  auto device = std::make_unique<EmulatedDevice>();
  device->late_ = std::make_unique<LateWork>(seed);
  return device;
}

EmulatedDevice::~EmulatedDevice() {
  if (late_ != nullptr) late_->finish();
  breakdown_.clear();
  end_writes();
  if (!pieces_.empty()) die("memory was not freed");
}

MemoryInfo EmulatedDevice::memory() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {total_bytes_ - use_.lasting_bytes - use_.temporary_bytes, total_bytes_};
}

void EmulatedDevice::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!breakdown_.empty()) throw DeviceLost(breakdown_);
}

void EmulatedDevice::reach_locked(const std::string& doing) {
  if (!breakdown_.empty()) throw DeviceLost(breakdown_);
  if (calls_left_ >= 0 && calls_left_-- == 0) throw DeviceError(doing + " was refused");
}

void EmulatedDevice::begin_launch(Stream stream, const void* kernel, const char* name) {
  streams.use(stream, number_);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (kernel != nullptr && !loaded_kernels_.contains(kernel)) {
    if (allocations_left_ == 0) throw OutOfDeviceMemory(0, 0, "starting kernel " + plain_name(name));
    if (allocations_left_ > 0) --allocations_left_;
    loaded_kernels_.insert(kernel);
  }
  reach_locked(kernel == nullptr ? "a call" : "starting kernel " + plain_name(name));
  ++num_launches_;
  has_work_ = true;
}

void EmulatedDevice::count_wait() {
  std::chrono::milliseconds wait_time;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reach_locked();
    has_work_ = false;
    ++num_waits_;
    ++waits_of_all;
    wait_time = wait_time_;
  }
  if (wait_time.count() > 0) std::this_thread::sleep_for(wait_time);
}

void EmulatedDevice::call_from_driver(void (*call)(void*), void* argument) {
  HostCalls::process().run(call, argument);
}

void EmulatedDevice::unload_kernels() {
  const std::lock_guard<std::mutex> lock(mutex_);
  loaded_kernels_.clear();
}

void EmulatedDevice::slow_down(std::chrono::milliseconds wait) {
  const std::lock_guard<std::mutex> lock(mutex_);
  wait_time_ = wait;
}

void* EmulatedDevice::allocate_piece(size_t num_bytes, Kind kind) {
  if (num_bytes == 0) return nullptr;
  uint64_t free_bytes = 0;
  void* memory = take_piece(num_bytes, kind, &free_bytes);
  if (memory == nullptr && kind != Kind::kPinned && reclaim())
    memory = take_piece(num_bytes, kind, &free_bytes);
  if (memory == nullptr) throw OutOfDeviceMemory(num_bytes, free_bytes);
  return memory;
}

void* EmulatedDevice::take_piece(size_t num_bytes, Kind kind, uint64_t* free_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reach_locked();
  const bool is_refused = allocations_left_ == 0;
  if (allocations_left_ > 0) --allocations_left_;
  *free_bytes = is_refused ? 0 : total_bytes_ - use_.lasting_bytes - use_.temporary_bytes;
  if (is_refused || (kind != Kind::kPinned && num_bytes > *free_bytes)) return nullptr;
  auto* whole = static_cast<unsigned char*>(
      ::operator new(num_bytes + 2 * border_bytes, std::align_val_t(alignment)));
  std::memset(whole, border, border_bytes);
  std::memset(whole + border_bytes, poison, num_bytes);
  std::memset(whole + border_bytes + num_bytes, border, border_bytes);
  pieces_[whole + border_bytes] = {num_bytes, kind};
  if (kind == Kind::kLasting) use_.lasting_bytes += num_bytes;
  if (kind == Kind::kTemporary) use_.temporary_bytes += num_bytes;
  if (kind != Kind::kTemporary) ++num_lasting_allocations_;
  return whole + border_bytes;
}

void EmulatedDevice::free_piece(void* memory, size_t num_bytes, Kind kind) noexcept {
  if (memory == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto piece = pieces_.find(memory);
  if (piece == pieces_.end()) die("memory that is not in use was freed");
  if (piece->second != std::pair(num_bytes, kind)) die("memory was freed with another size or "
                                                       "kind than it was allocated with");
  auto* bytes = static_cast<unsigned char*>(memory);
  if (!is_border(bytes - watched_bytes)) die("memory was written before its beginning");
  if (!is_border(bytes + num_bytes)) die("memory was written beyond its end");
  std::memset(bytes, poison, num_bytes);
  if (kind == Kind::kLasting) use_.lasting_bytes -= num_bytes;
  if (kind == Kind::kTemporary) use_.temporary_bytes -= num_bytes;
  if (kind == Kind::kPinned && has_work_) ++num_early_frees_;
  pieces_.erase(piece);
  ::operator delete(bytes - border_bytes, std::align_val_t(alignment));
}

void* EmulatedDevice::allocate(size_t num_bytes, Stream, Lifetime lifetime) {
  return allocate_piece(num_bytes, kind_of(lifetime));
}

void EmulatedDevice::free(void* memory, size_t num_bytes, Stream stream,
                          Lifetime lifetime) noexcept {
  if (LaunchBatch::takes_free(*this, memory, num_bytes, stream, lifetime)) return;
  put(stream, [=, this] { free_piece(memory, num_bytes, kind_of(lifetime)); });
}

MemoryUse EmulatedDevice::memory_use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

void* EmulatedDevice::allocate_pinned(size_t num_bytes) {
  const Using here(number_);
  streams.use_unsafely();
  return allocate_piece(num_bytes, Kind::kPinned);
}

void EmulatedDevice::free_pinned(void* memory, size_t num_bytes) noexcept {
  const Using here(number_);
  try {
    streams.use_unsafely();
  } catch (const DeviceError&) {
    // The capture is invalidated, which tests can observe.
  }
  free_piece(memory, num_bytes, Kind::kPinned);
}

void EmulatedDevice::copy(void* to, const void* from, size_t num_bytes, Stream stream) {
  if (num_bytes == 0) return;
  LaunchBatch::flush_current();
  streams.use(stream);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reach_locked();
    has_work_ = true;
    ++num_copies_;
  }
  put(stream, [=, this] { copy_now(to, from, num_bytes); });
}

void EmulatedDevice::copy_now(void* to, const void* from, size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_device_memory(from) && has_poison(static_cast<const unsigned char*>(from), num_bytes))
    ++num_unwritten_copies_;
  std::memcpy(to, from, num_bytes);
}

void EmulatedDevice::fill(void* memory, unsigned char byte, size_t num_bytes, Stream stream) {
  if (num_bytes == 0) return;
  LaunchBatch::flush_current();
  streams.use(stream, number_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reach_locked();
    has_work_ = true;
    ++num_fills_;
  }
  put(stream, [=] { std::memset(memory, byte, num_bytes); });
}

auto EmulatedDevice::piece_of(const void* address) const -> const std::pair<size_t, Kind>* {
  auto after = pieces_.upper_bound(const_cast<void*>(address));
  if (after == pieces_.begin()) return nullptr;
  const auto& [begin, piece] = *--after;
  const bool is_within = static_cast<const char*>(address) < static_cast<char*>(begin) + piece.first;
  return is_within ? &piece : nullptr;
}

bool EmulatedDevice::is_device_memory(const void* address) const {
  const auto* const piece = piece_of(address);
  return piece != nullptr && piece->second != Kind::kPinned;
}

// Streams and events are only identifiers.
Stream EmulatedDevice::make_stream() {
  const Stream stream = new char;
  streams.add(stream, number_);
  return stream;
}
void EmulatedDevice::free_stream(Stream stream) noexcept {
  streams.remove(stream);
  if (late_ != nullptr) late_->forget_stream(stream);
  delete static_cast<char*>(stream);
}
Event EmulatedDevice::make_event() { return new char; }
void EmulatedDevice::free_event(Event event) noexcept {
  if (late_ != nullptr) late_->forget_event(event);
  delete static_cast<char*>(event);
}
void EmulatedDevice::record(Event event, Stream stream) {
  LaunchBatch::flush_current();
  check();
  streams.use(stream, number_);
  if (late_ != nullptr) late_->record(event, stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  ++num_records_;
}
void EmulatedDevice::wait(Stream stream) {
  LaunchBatch::flush_current();
  const Using here(number_);
  streams.use_unsafely();
  streams.use(stream);
  count_wait();
  if (late_ != nullptr) late_->wait(stream);
}
void EmulatedDevice::wait_event(Event event) {
  const Using here(number_);
  streams.use_unsafely();
  count_wait();
  if (late_ != nullptr) late_->wait_event(event);
}

void EmulatedDevice::fail_from(int64_t allocation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  allocations_left_ = allocation;
}

void EmulatedDevice::break_down(std::string message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  breakdown_ = std::move(message);
}

void EmulatedDevice::refuse_once(int64_t call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_left_ = call;
}

uint64_t EmulatedDevice::num_unwritten_copies() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_unwritten_copies_;
}

uint64_t EmulatedDevice::num_launches() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_launches_;
}

uint64_t EmulatedDevice::num_copies() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_copies_;
}

uint64_t EmulatedDevice::num_fills() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_fills_;
}

uint64_t EmulatedDevice::num_lasting_allocations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_lasting_allocations_;
}

uint64_t EmulatedDevice::num_records() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_records_;
}

uint64_t EmulatedDevice::num_early_frees() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_early_frees_;
}

uint64_t EmulatedDevice::num_waits_of_all() { return waits_of_all; }

uint64_t EmulatedDevice::num_waits() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_waits_;
}

}  // namespace sparring::device
