#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
// Saves the callee-saved registers, stores the stack pointer at `*rdi`, and
// continues with the stack `rsi`, where this function was left.
extern "C" void sparring_switch_stack(void** save, void* load);
asm(R"(
.text
.hidden sparring_switch_stack
.globl sparring_switch_stack
.type sparring_switch_stack, @function
sparring_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sparring_switch_stack, .-sparring_switch_stack
)");
#endif

namespace sparring::device {
namespace {

thread_local Fiber* entered = nullptr;

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Fiber::Fiber() {
  const size_t guard = page_bytes();
  void* memory = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, guard, PROT_NONE);
  stack_ = static_cast<char*>(memory) + guard;
#if defined(__SANITIZE_THREAD__)
  thread_of_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(thread_of_fiber_);
#endif
  munmap(stack_ - page_bytes(), page_bytes() + stack_bytes);
}

void Fiber::start(void (*run)(void*), void* argument) {
  run_ = run;
  argument_ = argument;
  is_done_ = false;
  fake_stack_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, stack_bytes);
#endif
#if defined(__x86_64__)
  // The layout in which sparring_switch_stack leaves a stack: six registers, then the
  // return address. At the start of a function the stack pointer is 8 below a multiple of 16.
  auto* top = reinterpret_cast<void**>(stack_ + stack_bytes - 24);
  top[-1] = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 2; i <= 7; ++i) top[-i] = nullptr;
  top[0] = nullptr;
  fiber_stack_pointer_ = top - 7;
#else
  getcontext(&fiber_context_);
  fiber_context_.uc_stack.ss_sp = stack_;
  fiber_context_.uc_stack.ss_size = stack_bytes;
  fiber_context_.uc_link = nullptr;
  makecontext(&fiber_context_, &Fiber::enter, 0);
#endif
}

void Fiber::switch_in() {
#if defined(__x86_64__)
  sparring_switch_stack(&resumer_stack_pointer_, fiber_stack_pointer_);
#else
  swapcontext(&resumer_context_, &fiber_context_);
#endif
}

void Fiber::switch_out() {
#if defined(__x86_64__)
  sparring_switch_stack(&fiber_stack_pointer_, resumer_stack_pointer_);
#else
  swapcontext(&fiber_context_, &resumer_context_);
#endif
}

void Fiber::resume() {
  entered = this;
#if defined(__SANITIZE_THREAD__)
  thread_of_resumer_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(thread_of_fiber_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* own_fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&own_fake_stack, stack_, stack_bytes);
#endif
  switch_in();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::pause() {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(thread_of_resumer_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
  // A fiber that ends releases its fake stack.
  __sanitizer_start_switch_fiber(is_done_ ? nullptr : &fake_stack_, resumer_stack_,
                                 resumer_stack_bytes_);
#endif
  switch_out();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &resumer_stack_, &resumer_stack_bytes_);
#endif
}

void Fiber::enter() {
  Fiber* self = entered;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->resumer_stack_, &self->resumer_stack_bytes_);
#endif
  self->run_(self->argument_);
  self->is_done_ = true;
  self->pause();
  __builtin_unreachable();
}

}  // namespace sparring::device
