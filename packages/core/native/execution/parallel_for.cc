#include "execution/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <thread>

#include "execution/framework_threads.h"
#include "execution/pool.h"

namespace sparring::execution {
namespace {

// More ranges than threads, so that a thread that starts late or is preempted delays the
// end by only one short range. With 4 per thread, lookups of 8,000 to 65,536 ids took 3 to
// 8 % longer on two cores.
constexpr int64_t ranges_per_thread = 8;

// About 20 microseconds: the rest of a typical range. Sleeping and waking up takes longer.
constexpr int spins_before_sleep = 512;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// State shared by the caller and its helpers. The last of them frees it, because a helper may
// start only after the loop has ended.
class Loop {
 public:
  Loop(int64_t count, int64_t range_length, void (*body)(void*, int64_t, int64_t),
       void* context)
      : count_(count),
        range_length_(range_length),
        num_ranges_(static_cast<int32_t>((count + range_length - 1) / range_length)),
        body_(body),
        context_(context) {}

  // Requests up to `wanted` helpers. If fewer are available, the loop continues with fewer,
  // because they only affect speed.
  void call_helpers(Pool& pool, int wanted) {
    helpers_.reset(new (std::nothrow) Helper[static_cast<size_t>(wanted)]);
    for (int i = 0; helpers_ != nullptr && i < wanted; ++i) {
      helpers_[i].loop = this;
      num_owners_.fetch_add(1, std::memory_order_relaxed);
      try {
        pool.enqueue(helpers_[i]);
      } catch (const std::exception&) {
        num_owners_.fetch_sub(1, std::memory_order_relaxed);
        return;
      }
    }
  }

  // Runs ranges on `wanted` threads of a framework, and returns when all of them have finished. They
  // take ranges from one counter, like helpers, so that other threads execute the ranges of a thread
  // that starts late or not at all.
  void run_on(const FrameworkThreads& threads, int wanted) {
    threads.parallel_for(
        0, wanted, 1,
        [](int64_t, int64_t, void* context) {
          const FrameworkLoopScope inside;
          const ComputingScope computing(Pool::process().num_computing());
          while (static_cast<Loop*>(context)->run_one()) {
          }
        },
        this);
  }

  void run_as_caller() {
    while (run_one()) {
    }
    for (int spin = 0; spin < spins_before_sleep && !is_done(); ++spin) pause_briefly();
    for (int32_t done; (done = num_done_.load(std::memory_order_acquire)) != num_ranges_;) {
      num_done_.wait(done, std::memory_order_acquire);
    }
  }

  void leave() {
    if (num_owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  struct Helper final : PoolTask {
    void run() noexcept override {
      // This thread is counted already, because the pool counts all threads that run its tasks.
      const std::atomic<int>& num_computing = Pool::process().num_computing();
      const int limit = Pool::process().num_threads();
      while (num_computing.load(std::memory_order_relaxed) <= limit && loop->run_one()) {
      }
      loop->leave();
    }
    Loop* loop = nullptr;
  };

  bool is_done() const { return num_done_.load(std::memory_order_acquire) == num_ranges_; }

  // Returns false if no range is left.
  bool run_one() {
    // Read first, so that late helpers do not increment it without limit.
    if (next_.load(std::memory_order_relaxed) >= num_ranges_) return false;
    const int64_t range = next_.fetch_add(1, std::memory_order_relaxed);
    if (range >= num_ranges_) return false;
    const int64_t begin = range * range_length_;
    body_(context_, begin, std::min(begin + range_length_, count_));
    if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_ranges_) {
      num_done_.notify_one();
    }
    return true;
  }

  const int64_t count_;
  const int64_t range_length_;
  const int32_t num_ranges_;
  void (*const body_)(void*, int64_t, int64_t);
  void* const context_;
  std::unique_ptr<Helper[]> helpers_;
  std::atomic<int64_t> next_{0};
  std::atomic<int32_t> num_done_{0};
  std::atomic<int32_t> num_owners_{1};
};

}  // namespace

void parallel_for(int64_t count, int64_t grain,
                  void (*body)(void* context, int64_t begin, int64_t end), void* context) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  Pool& pool = Pool::process();
  const int num_threads = pool.num_threads();
  if (count <= grain || num_threads == 1 || is_framework_thread()) return body(context, 0, count);

  const ComputingScope computing(pool.num_computing());
  const int num_free = num_threads - pool.num_computing().load(std::memory_order_relaxed);
  const int64_t num_ranges = std::min(count / grain, ranges_per_thread * num_threads);
  const auto num_helpers = static_cast<int>(std::min<int64_t>(num_free, num_ranges - 1));
  if (num_helpers <= 0) return body(context, 0, count);

  const int64_t range_length = (count + num_ranges - 1) / num_ranges;
  // A loop with fewer ranges than threads is over tables. Their inner loops use the threads of the
  // framework instead.
  const FrameworkThreads* const threads =
      num_ranges >= num_threads ? borrowed(num_helpers + 1) : nullptr;
  if (threads != nullptr) {
    Loop loop(count, range_length, body, context);
    loop.run_on(*threads, num_helpers + 1);
    return loop.run_as_caller();  // runs everything if the framework failed
  }

  auto* loop = new (std::nothrow) Loop(count, range_length, body, context);
  if (loop == nullptr) return body(context, 0, count);
  loop->call_helpers(pool, num_helpers);
  loop->run_as_caller();
  loop->leave();
}

}  // namespace sparring::execution
