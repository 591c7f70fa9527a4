#include "execution/pool.h"

#include <pthread.h>

#include <string>
#include <thread>

#include "execution/framework_threads.h"
#include "execution/parallel_for.h"
#include "execution/usable_cores.h"

namespace sparring::execution {
namespace {

using std::chrono::milliseconds;

// Work that has returned its result may not have left the worker yet. If cores are
// contended, helpers of a loop that has ended may start late.
constexpr milliseconds configure_patience{2000};
constexpr milliseconds fork_patience{50};

thread_local bool is_at_work = false;

void lent_parallel_for(void*, int64_t count, int64_t grain,
                       void (*body)(void* context, int64_t begin, int64_t end),
                       void* context) {
  parallel_for(count, grain, body, context);
}

}  // namespace

Pool& Pool::process() {
  static Pool* const pool = new Pool;
  return *pool;
}

bool Pool::is_pool_thread() { return is_at_work; }

Pool::Pool() {
  executor_.struct_bytes = sizeof executor_;
  executor_.self = this;
  executor_.concurrency = default_threads();
  executor_.parallel_for = lent_parallel_for;
  pthread_atfork([] { process().before_fork(); }, [] { process().after_fork_in_parent(); },
                 [] { process().after_fork_in_child(); });
}

void Pool::configure(int threads) {
  if (threads < 0 || threads > max_threads) {
    throw std::invalid_argument("the pool must have 0 (automatic) to " +
                                std::to_string(max_threads) + " threads, found " +
                                std::to_string(threads));
  }
  const int wanted = threads == 0 ? default_threads() : threads;
  const std::lock_guard lock(mutex_);
  if (is_orphan_ || wanted == executor_.concurrency) return;
  if (is_at_work || !becomes_idle(configure_patience) || num_computing_.load() != 0) {
    throw PoolBusyError("the pool has work, so its size cannot change from " +
                        std::to_string(executor_.concurrency) + " to " + std::to_string(wanted) +
                        " threads; configure it before work begins");
  }
  arena_.reset();
  executor_.concurrency = wanted;
}

void Pool::enqueue(PoolTask& task) {
  const std::lock_guard lock(mutex_);
  if (is_orphan_) {
    std::thread([&task] { run_on_worker(task); }).detach();
  } else {
    if (arena_ == nullptr) arena_ = std::make_unique<Arena>(executor_.concurrency);
    arena_->enqueue(task, run_on_worker);
  }
  num_outstanding_.fetch_add(1, std::memory_order_relaxed);
}

void Pool::run_on_worker(PoolTask& task) {
  Pool& pool = process();
  is_at_work = true;
  {
    const ComputingScope computing(pool.num_computing_);
    task.run();  // `task` may be destroyed after this
  }
  is_at_work = false;
  // May run before `enqueue` has incremented the count, which is therefore signed.
  pool.num_outstanding_.fetch_sub(1, std::memory_order_release);
}

bool Pool::becomes_idle(milliseconds patience) const {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (num_outstanding_.load(std::memory_order_acquire) != 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

void Pool::before_fork() {
  mutex_.lock();
  if (is_orphan_) return;
  is_fork_clean_ = !is_at_work && becomes_idle(fork_patience);
  if (!is_fork_clean_) return;
  arena_.reset();
  is_fork_clean_ = Arena::end_scheduler();
}

void Pool::after_fork_in_parent() { mutex_.unlock(); }

void Pool::after_fork_in_child() {
  forget_borrowed_after_fork();
  if (!is_fork_clean_) {
    // Its threads do not exist in this process, and even its destructor could wait for them.
    (void)arena_.release();
    is_orphan_ = true;
    executor_.concurrency = 1;
  }
  num_outstanding_.store(0, std::memory_order_relaxed);
  num_computing_.store(ComputingScope::is_counted() ? 1 : 0, std::memory_order_relaxed);
  mutex_.unlock();
}

}  // namespace sparring::execution
