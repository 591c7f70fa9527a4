// A function that can be left in its middle and gone on with later: a lane of
// the emulator. A fiber stays on the thread that first ran it until it ends.
//
// On x86-64 a switch is a dozen instructions; elsewhere it is swapcontext.
// AddressSanitizer and ThreadSanitizer are told of each switch.
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
  // Bytes of a fiber's stack; touched pages only are resident.
  static constexpr size_t stack_bytes = 256 * 1024;

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls run(argument) from its beginning. What an earlier
  // run left on the stack is forgotten, not unwound.
  void start(void (*run)(void*), void* argument);
  // Runs the fiber until it calls pause() or its function returns.
  void resume();
  // Back to the caller of resume(). REQUIRES: called by the fiber itself.
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
  // For the sanitizers.
  void* fake_stack_ = nullptr;
  void* thread_of_fiber_ = nullptr;
  void* thread_of_resumer_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_FIBER_H_
