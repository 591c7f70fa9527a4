#include "cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <utility>

#include "cuda_driver.h"
#include "cuda_status.h"
#include "cuda_stream.h"
#include "device_scope.h"
#include "kernel_list.h"
#include "launch_batch.h"
#include "stream_refusal.h"

namespace sparring::device {
namespace {

// The runtime functions of `DeviceScope`. Errors are ignored: a lost GPU was already reported.
struct CudaRuntime {
  static int current() {
    int number = 0;
    cudaGetDevice(&number);
    return number;
  }
  static void choose(int number) { cudaSetDevice(number); }
  static int exchange_capture_mode(int number) {
    auto mode = static_cast<cudaStreamCaptureMode>(number);
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) cudaGetLastError();
    return mode;
  }
  static bool has_context(int number) {
    using GetState = int (*)(int device, unsigned* flags, int* is_active);
    static const auto get_state =
        reinterpret_cast<GetState>(driver_function("cuDevicePrimaryCtxGetState"));
    unsigned flags = 0;
    int is_active = 0;
    return get_state == nullptr || (get_state(number, &flags, &is_active) == 0 && is_active != 0);
  }
};

using Using = DeviceScope<CudaRuntime>;

// Stream-ordered memory. The pool keeps unused memory up to a limit, and returns the rest to the
// driver when a stream is synchronized.
struct Pool {
  cudaMemPool_t pool = nullptr;
  std::atomic<uint64_t> used_bytes{0};

  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    if (pool != nullptr) cudaMemPoolDestroy(pool);
  }
  // GPUs without memory pools, such as some virtual GPUs, have none. Their memory is allocated by
  // cudaMalloc and freed when the stream is done.
  void make(int index, uint64_t kept_bytes) {
    int has_pools = 0;
    throw_if_failed(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, index),
                    "querying memory pools");
    if (has_pools == 0) return;
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, index};
    throw_if_failed(cudaMemPoolCreate(&pool, &properties), "creating a memory pool");
    throw_if_failed(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept_bytes),
                    "configuring the memory pool");
  }
  void trim() const {
    if (pool != nullptr && cudaMemPoolTrimTo(pool, 0) != cudaSuccess) cudaGetLastError();
  }
  // Memory reserved from the driver, used or unused.
  uint64_t held_bytes() const {
    uint64_t bytes = used_bytes;
    if (pool != nullptr &&
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess) {
      cudaGetLastError();
    }
    return bytes;
  }
};

static_assert(kRelaxedCapture == cudaStreamCaptureModeRelaxed);

class CudaDevice : public Device {
 public:
  CudaDevice(int index, uint64_t kept_bytes) : index_(index) {
    const Using here(index_);
    check_status(cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, index_),
          "querying the number of multiprocessors");
    load_kernels();
    temporary_.make(index_, kept_bytes);
    lasting_.make(index_, 0);
    kept_bytes_ = kept_bytes;
    most_kept_bytes_ = std::max(kept_bytes, memory().total_bytes / kMostKeptShare);
  }

  ~CudaDevice() override { end_writes(); }

  std::string name() const override { return "cuda:" + std::to_string(index_); }
  unsigned num_multiprocessors() const override {
    return static_cast<unsigned>(num_multiprocessors_);
  }
  MemoryInfo memory() const override {
    const Using here(index_);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    check_status(cudaMemGetInfo(&free_bytes, &total_bytes), "querying the free memory");
    return {free_bytes, total_bytes};
  }
  void use() const override { check_status(cudaSetDevice(index_), "selecting the device"); }
  void check() const override { memory(); }

  void* allocate(size_t num_bytes, Stream stream, Lifetime lifetime) override {
    if (num_bytes == 0) return nullptr;
    const Using here(index_);
    Pool& pool = pool_of(lifetime);
    void* memory = take(pool, num_bytes, stream);
    if (memory == nullptr) {
      // Unused memory of the pools is released first.
      temporary_.trim();
      lasting_.trim();
      memory = take(pool, num_bytes, stream);
    }
    if (memory == nullptr && reclaim()) memory = take(pool, num_bytes, stream);
    if (memory == nullptr) throw OutOfDeviceMemory(num_bytes, free_bytes());
    const uint64_t used = pool.used_bytes += num_bytes;
    if (lifetime == Lifetime::kTemporary) keep(used);
    return memory;
  }
  void free(void* memory, size_t num_bytes, Stream stream, Lifetime lifetime) noexcept override {
    if (memory == nullptr || LaunchBatch::takes_free(*this, memory, num_bytes, stream, lifetime)) return;
    const Using here(index_);
    Pool& pool = pool_of(lifetime);
    pool.used_bytes -= num_bytes;
    // On a lost GPU nothing can be freed.
    if (pool.pool != nullptr) {
      cudaFreeAsync(memory, of(stream));
    } else {
      cudaStreamSynchronize(of(stream));
      cudaFree(memory);
    }
  }
  MemoryUse memory_use() const override {
    const Using here(index_);
    const uint64_t used = lasting_.used_bytes + temporary_.used_bytes;
    const uint64_t held = lasting_.held_bytes() + temporary_.held_bytes();
    return {lasting_.used_bytes, temporary_.used_bytes, held > used ? held - used : 0};
  }
  void* allocate_pinned(size_t num_bytes) override {
    if (num_bytes == 0) return nullptr;
    const Using here(index_);
    void* memory = nullptr;
    const cudaError_t status =
        cudaHostAlloc(&memory, num_bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfDeviceMemory(num_bytes, free_bytes());
    }
    check_status(status, "allocating pinned host memory");
    return memory;
  }
  void free_pinned(void* memory, size_t) noexcept override {
    const Using here(index_);
    if (memory != nullptr) cudaFreeHost(memory);
  }

  void copy(void* to, const void* from, size_t num_bytes, Stream stream) override {
    if (num_bytes == 0) return;
    LaunchBatch::flush_current();
    const Using here(index_);
    check_status(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, of(stream)), "copying");
  }
  void fill(void* memory, unsigned char byte, size_t num_bytes, Stream stream) override {
    if (num_bytes == 0) return;
    LaunchBatch::flush_current();
    const Using here(index_);
    check_status(cudaMemsetAsync(memory, byte, num_bytes, of(stream)), "filling memory");
  }

  Stream make_stream() override {
    const Using here(index_);
    cudaStream_t stream = nullptr;
    check_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    return stream;
  }
  void free_stream(Stream stream) noexcept override {
    const Using here(index_);
    cudaStreamDestroy(of(stream));
  }
  void wait(Stream stream) override {
    LaunchBatch::flush_current();
    const Using here(index_);
    check_status(cudaStreamSynchronize(of(stream)), "waiting for a stream");
  }
  void check_stream_device(Stream stream) const override {
    const Using here(index_);
    const int owner = device_of(of(stream));
    if (owner >= 0 && owner != index_)
      refuse_device_of_stream("cuda:" + std::to_string(owner), name());
  }
  void check_stream_capture(Stream stream) const override {
    const Using here(index_);
    if (is_captured(of(stream))) refuse_captured_stream();
  }

  Event make_event() override {
    const Using here(index_);
    cudaEvent_t event = nullptr;
    check_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
    return event;
  }
  void free_event(Event event) noexcept override {
    const Using here(index_);
    cudaEventDestroy(event_of(event));
  }
  void record(Event event, Stream stream) override {
    LaunchBatch::flush_current();
    const Using here(index_);
    check_status(cudaEventRecord(event_of(event), of(stream)), "recording an event");
  }
  void wait_event(Event event) override {
    const Using here(index_);
    check_status(cudaEventSynchronize(event_of(event)), "waiting for an event");
  }
  bool is_done(Event event) override {
    const Using here(index_);
    const cudaError_t status = cudaEventQuery(event_of(event));
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check_status(status, "querying an event");
    return true;
  }
  void order_after(Event event, Stream stream) override {
    LaunchBatch::flush_current();
    const Using here(index_);
    check_status(cudaStreamWaitEvent(of(stream), event_of(event), 0), "ordering a stream after an event");
  }
  void call_on_host(Stream stream, void (*call)(void*), void* argument) override {
    LaunchBatch::flush_current();
    const Using here(index_);
    check_status(cudaLaunchHostFunc(of(stream), call, argument), "enqueueing a host call on a stream");
  }

  int current() const override {
    int number = index_;
    check_status(cudaGetDevice(&number), "querying the current device");
    return number;
  }
  void make_current(int number) const noexcept override {
    put_back<CudaRuntime>(number);
  }

 private:
  void load_kernels() const {
    for (const void* kernel : all_kernels()) {
      cudaFuncAttributes attributes{};
      const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
      if (status != cudaSuccess) throw_if_start_failed(status, name() + ": loading kernels");
    }
  }
  static cudaStream_t of(Stream stream) { return static_cast<cudaStream_t>(stream); }
  static cudaEvent_t event_of(Event event) { return static_cast<cudaEvent_t>(event); }
  void check_status(cudaError_t status, const char* doing) const {
    if (status != cudaSuccess) throw_if_failed(status, name() + ": " + doing);
  }
  uint64_t free_bytes() const {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess ? free_bytes : 0;
  }

  // Keeps the maximum that calls have used at once, so that the next call does not wait for the
  // driver, which takes milliseconds to map the memory for a call of a million keys.
  void keep(uint64_t used) {
    const uint64_t wanted = std::min(used, most_kept_bytes_);
    if (temporary_.pool == nullptr || wanted <= kept_bytes_) return;
    const std::lock_guard<std::mutex> lock(keep_mutex_);
    if (wanted <= kept_bytes_) return;
    uint64_t kept = std::min(std::bit_ceil(wanted), most_kept_bytes_);
    if (cudaMemPoolSetAttribute(temporary_.pool, cudaMemPoolAttrReleaseThreshold, &kept) != cudaSuccess)
      cudaGetLastError();
    kept_bytes_ = kept;
  }
  Pool& pool_of(Lifetime lifetime) {
    return lifetime == Lifetime::kLasting ? lasting_ : temporary_;
  }
  // Returns NULL if there is no free memory.
  void* take(Pool& pool, size_t num_bytes, Stream stream) const {
    void* memory = nullptr;
    const cudaError_t status =
        pool.pool != nullptr ? cudaMallocFromPoolAsync(&memory, num_bytes, pool.pool, of(stream))
                             : cudaMalloc(&memory, num_bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error
      return nullptr;
    }
    check_status(status, "allocating device memory");
    return memory;
  }

  int index_;
  int num_multiprocessors_ = 0;
  Pool temporary_;
  Pool lasting_;
  std::mutex keep_mutex_;
  std::atomic<uint64_t> kept_bytes_{0};
  uint64_t most_kept_bytes_ = 0;
};

}  // namespace

GpuCount count_gpus() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return {count, ""};
  cudaGetLastError();
  return {0, status == cudaSuccess ? "no GPU is visible" : text_of(status)};
}

std::unique_ptr<Device> make_cuda_device(int index, uint64_t kept_bytes) {
  const GpuCount gpus = count_gpus();
  if (index < 0 || index >= gpus.count) {
    throw DeviceError("cuda:" + std::to_string(index) + " does not exist; the number of visible GPUs is " +
                      std::to_string(gpus.count) +
                      (gpus.reason.empty() ? "" : " (" + gpus.reason + ")"));
  }
  return std::make_unique<CudaDevice>(index, kept_bytes);
}

}  // namespace sparring::device
