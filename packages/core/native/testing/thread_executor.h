// An executor of plain threads: each parallel_for starts new threads, which is slow and
// obviously correct.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "sparring/storage_abi.h"

namespace sparring::testing {

class ThreadExecutor {
 public:
  explicit ThreadExecutor(int num_threads)
      : executor_{sizeof(SparringExecutor), this, num_threads, &ThreadExecutor::parallel_for} {}

  const SparringExecutor* get() const { return &executor_; }

 private:
  static void parallel_for(void* self, int64_t count, int64_t grain,
                           void (*body)(void*, int64_t, int64_t), void* context) {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
      for (;;) {
        const int64_t begin = next.fetch_add(grain);
        if (begin >= count) return;
        body(context, begin, std::min(begin + grain, count));
      }
    };
    std::vector<std::thread> threads;
    const int num_threads = static_cast<ThreadExecutor*>(self)->executor_.concurrency;
    for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
  }

  SparringExecutor executor_;
};

}  // namespace sparring::testing
