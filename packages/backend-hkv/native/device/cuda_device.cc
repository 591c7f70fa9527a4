#include "cuda_device.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda_status.h"

namespace sparring::device {
namespace {

// Freed memory that the pool keeps, so that the temporary buffers of a step are
// not asked of the driver anew each time.
constexpr uint64_t kept_bytes = uint64_t{1} << 30;

// The calling thread's device, put back at the end.
class Using {
 public:
  explicit Using(int index) {
    cudaGetDevice(&before_);
    if (before_ != index) cudaSetDevice(index);
    index_ = index;
  }
  ~Using() {
    if (before_ != index_) cudaSetDevice(before_);
  }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;

 private:
  int before_ = 0;
  int index_ = 0;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int index, const std::optional<FrameworkAllocator>& allocator)
      : index_(index), allocator_(allocator) {
    const Using here(index_);
    check_status(cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, index_),
          "asking for the number of multiprocessors");
    if (allocator_) return;
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, index_};
    check_status(cudaMemPoolCreate(&pool_, &properties), "making a memory pool");
    uint64_t threshold = kept_bytes;
    check_status(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold),
          "setting up the memory pool");
  }
  ~CudaDevice() override {
    if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  }

  std::string name() const override { return "cuda:" + std::to_string(index_); }
  unsigned num_multiprocessors() const override {
    return static_cast<unsigned>(num_multiprocessors_);
  }
  MemoryInfo memory() const override {
    const Using here(index_);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    check_status(cudaMemGetInfo(&free_bytes, &total_bytes), "asking how much memory is free");
    return {free_bytes, total_bytes};
  }
  void use() const override { check_status(cudaSetDevice(index_), "choosing the device"); }
  void check() const override { memory(); }

  void* allocate(size_t num_bytes, Stream stream) override {
    if (num_bytes == 0) return nullptr;
    const Using here(index_);
    void* memory = nullptr;
    if (allocator_) {
      memory = allocator_->allocate(allocator_->context, num_bytes, stream);
      if (memory == nullptr) throw OutOfDeviceMemory(num_bytes, free_bytes());
      return memory;
    }
    const cudaError_t status = cudaMallocFromPoolAsync(&memory, num_bytes, pool_, of(stream));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // this one does not stay
      throw OutOfDeviceMemory(num_bytes, free_bytes());
    }
    check_status(status, "allocating device memory");
    return memory;
  }
  void free(void* memory, size_t num_bytes, Stream stream) noexcept override {
    if (memory == nullptr) return;
    const Using here(index_);
    if (allocator_) {
      allocator_->free(allocator_->context, memory, num_bytes, stream);
    } else {
      cudaFreeAsync(memory, of(stream));  // a lost GPU has nothing to free
    }
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
    const Using here(index_);
    check_status(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, of(stream)), "copying");
  }
  void fill(void* memory, unsigned char byte, size_t num_bytes, Stream stream) override {
    if (num_bytes == 0) return;
    const Using here(index_);
    check_status(cudaMemsetAsync(memory, byte, num_bytes, of(stream)), "filling memory");
  }

  Stream make_stream() override {
    const Using here(index_);
    cudaStream_t stream = nullptr;
    check_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    return stream;
  }
  void free_stream(Stream stream) noexcept override { cudaStreamDestroy(of(stream)); }
  void wait(Stream stream) override {
    const Using here(index_);
    check_status(cudaStreamSynchronize(of(stream)), "waiting for a stream");
  }

  Event make_event() override {
    const Using here(index_);
    cudaEvent_t event = nullptr;
    check_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    return event;
  }
  void free_event(Event event) noexcept override { cudaEventDestroy(event_of(event)); }
  void record(Event event, Stream stream) override {
    const Using here(index_);
    check_status(cudaEventRecord(event_of(event), of(stream)), "recording an event");
  }
  void wait_event(Event event) override {
    check_status(cudaEventSynchronize(event_of(event)), "waiting for an event");
  }
  bool is_done(Event event) override {
    const cudaError_t status = cudaEventQuery(event_of(event));
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check_status(status, "asking for an event");
    return true;
  }
  void order_after(Event event, Stream stream) override {
    const Using here(index_);
    check_status(cudaStreamWaitEvent(of(stream), event_of(event), 0), "ordering a stream after an event");
  }
  void call_on_host(Stream stream, void (*call)(void*), void* argument) override {
    const Using here(index_);
    check_status(cudaLaunchHostFunc(of(stream), call, argument), "putting a host call on a stream");
  }

  int current() const override {
    int number = index_;
    check_status(cudaGetDevice(&number), "asking for the current device");
    return number;
  }
  void make_current(int number) const noexcept override {
    if (number != index_) cudaSetDevice(number);  // a lost GPU has been told of already
  }

 private:
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

  int index_;
  std::optional<FrameworkAllocator> allocator_;
  int num_multiprocessors_ = 0;
  cudaMemPool_t pool_ = nullptr;
};

}  // namespace

GpuCount count_gpus() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return {count, ""};
  cudaGetLastError();
  return {0, status == cudaSuccess ? "no GPU is visible" : text_of(status)};
}

std::unique_ptr<Device> make_cuda_device(int index,
                                         const std::optional<FrameworkAllocator>& allocator) {
  const GpuCount gpus = count_gpus();
  if (index < 0 || index >= gpus.count) {
    throw DeviceError("cuda:" + std::to_string(index) + " was asked for, there are " +
                      std::to_string(gpus.count) + " GPUs" +
                      (gpus.reason.empty() ? "" : " (" + gpus.reason + ")"));
  }
  return std::make_unique<CudaDevice>(index, allocator);
}

}  // namespace sparring::device
