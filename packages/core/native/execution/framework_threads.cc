#include "execution/framework_threads.h"

#include <atomic>

#include "execution/pool.h"

namespace sparring::execution {
namespace {

std::atomic<bool> is_forked{false};
thread_local FrameworkThreads of_thread{};

}  // namespace

void borrow(const FrameworkThreads& threads) {
  Pool::process();  // whose handlers of forks call `forget_borrowed_after_fork`
  if (!is_forked) of_thread = threads;
}

void give_back() { of_thread = {}; }

const FrameworkThreads* borrowed(int wanted) {
  if (of_thread.parallel_for == nullptr) return nullptr;
  uint32_t offered = 0;
  const bool is_known = of_thread.num_threads(&offered) == 0;
  return is_known && offered >= static_cast<uint32_t>(wanted) ? &of_thread : nullptr;
}

void forget_borrowed_after_fork() {
  is_forked = true;
  of_thread = {};
}

}  // namespace sparring::execution
