// A function that can be suspended and resumed: a lane of the emulator. A fiber
// stays on the thread that first ran it until it ends.
//
// On x86-64 a switch takes a dozen instructions; other processors use swapcontext.
// AddressSanitizer and ThreadSanitizer are notified of each switch.
#ifndef SPARRING_HKV_DEVICE_FIBER_H_
#define SPARRING_HKV_DEVICE_FIBER_H_

#include <cstddef>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace sparring::device {

class Fiber {
 public:
  // Size of a fiber's stack in bytes; only used pages are resident.
  static constexpr size_t stack_bytes = 256 * 1024;

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls run(argument) from its start. Objects that an earlier
  // run left on the stack are not destroyed.
  void start(void (*run)(void*), void* argument);
  // Runs the fiber until it calls pause() or its function returns.
  void resume();
  // Returns to the caller of resume(). REQUIRES: called by the fiber itself.
  void pause();
  bool is_done() const { return is_done_; }

 private:
  static void enter();
  void switch_in();
  void switch_out();

  char* stack_;  // the lowest byte, above a guard page
  void (*run_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool is_done_ = true;
#if defined(__x86_64__)
  void* fiber_stack_pointer_ = nullptr;
  void* resumer_stack_pointer_ = nullptr;
#else
  ucontext_t fiber_context_;
  ucontext_t resumer_context_;
#endif
  // State for the sanitizers.
  void* fake_stack_ = nullptr;
  void* thread_of_fiber_ = nullptr;
  void* thread_of_resumer_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_FIBER_H_
