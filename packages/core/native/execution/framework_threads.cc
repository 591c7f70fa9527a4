#include "execution/framework_threads.h"

#include <atomic>

#include "execution/pool.h"

namespace sparring::execution {
namespace {

std::atomic<bool> is_forked{false};
thread_local FrameworkThreads of_thread{};
thread_local bool is_inside = false;

}  // namespace

FrameworkLoopScope::FrameworkLoopScope() : was_inside_(is_inside) { is_inside = true; }
FrameworkLoopScope::~FrameworkLoopScope() { is_inside = was_inside_; }

bool is_framework_thread() { return is_inside && of_thread.parallel_for == nullptr; }

void borrow(const FrameworkThreads& threads) {
  Pool::process();  // whose handlers of forks call `forget_borrowed_after_fork`
  if (!is_forked) of_thread = threads;
}

void give_back() { of_thread = {}; }

const FrameworkThreads* borrowed(int wanted) {
  // A framework runs a loop inside its own loop only on the caller.
  if (of_thread.parallel_for == nullptr || is_inside) return nullptr;
  uint32_t offered = 0;
  const bool is_known = of_thread.num_threads(&offered) == 0;
  return is_known && offered >= static_cast<uint32_t>(wanted) ? &of_thread : nullptr;
}

void forget_borrowed_after_fork() {
  is_forked = true;
  of_thread = {};
}

}  // namespace sparring::execution
