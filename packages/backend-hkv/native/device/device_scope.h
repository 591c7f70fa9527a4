// The calling thread's current GPU and its mode towards captures, changed and put back.
//
// The mode is relaxed: else a call of CUDA that waits, asks for an event or takes pinned memory
// fails while any thread captures a graph, torch's among them, and spoils that capture. No work here
// is ever part of a capture: a captured stream is refused before.
//
// Putting back must have no side effect. To choose a GPU that has no context in this process
// makes one on it: hundreds of megabytes, and on many ranks all of them on GPU 0, because a thread that
// never chose a GPU is said to use that one. So
//   1. a GPU is put back only where it has a context already;
//   2. else the thread stays where it is: it has used no other GPU before.
#ifndef SPARRING_HKV_DEVICE_DEVICE_SCOPE_H_
#define SPARRING_HKV_DEVICE_DEVICE_SCOPE_H_

namespace sparring::device {

// Runtime: static int current(), void choose(int), bool has_context(int), and
// int exchange_capture_mode(int), which returns the one before.
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
    // On the GPU in use, for CUDA makes a context where the thread's one has none.
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
