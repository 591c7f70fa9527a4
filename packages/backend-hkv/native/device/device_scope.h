// Sets the calling thread's current GPU and its capture mode, and restores them.
//
// The capture mode is relaxed. Otherwise, calls of CUDA that wait, query an event or allocate
// pinned memory would fail while any thread captures a graph (torch does), and invalidate that
// capture. Work of this package is never part of a capture, because streams that are being captured
// are rejected.
//
// Restoring must have no side effects. Selecting a GPU without a context in this process creates
// one: hundreds of megabytes and, with many ranks, all of them on GPU 0, because that is the
// current GPU of a thread that has selected none. Therefore
//   1. a GPU is restored only if it already has a context;
//   2. otherwise the thread keeps the new GPU, because it has used no other one before.
#ifndef SPARRING_HKV_DEVICE_DEVICE_SCOPE_H_
#define SPARRING_HKV_DEVICE_DEVICE_SCOPE_H_

namespace sparring::device {

// Runtime: static int current(), void choose(int), bool has_context(int), and
// int exchange_capture_mode(int), which returns the previous mode.
inline constexpr int kRelaxedCapture = 2;  // cudaStreamCaptureModeRelaxed

template <typename Runtime>
void put_back(int number) {
  if (Runtime::current() != number && Runtime::has_context(number)) Runtime::choose(number);
}

template <typename Runtime>
class DeviceScope {
 public:
  explicit DeviceScope(int number) : before_(Runtime::current()) {
    if (before_ != number) Runtime::choose(number);
    // After selecting the GPU, because CUDA creates a context if the current GPU has none.
    mode_before_ = Runtime::exchange_capture_mode(kRelaxedCapture);
  }
  ~DeviceScope() {
    Runtime::exchange_capture_mode(mode_before_);
    put_back<Runtime>(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_;
  int mode_before_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_DEVICE_SCOPE_H_
