// The size, loops and tasks of the pool.
#include "execution/pool.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <semaphore>
#include <set>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "execution/parallel_for.h"
#include "testing/check.h"

namespace sparring::execution {
namespace {

using namespace std::chrono_literals;

struct Configured {
  explicit Configured(int threads) { Pool::process().configure(threads); }
  ~Configured() { Pool::process().configure(0); }
};

struct CallTask final : PoolTask {
  void run() noexcept override {
    function();
    ended.release();
  }
  void (*function)() = nullptr;
  std::counting_semaphore<> ended{0};
};

void every_index_is_visited_once() {
  const Configured four(4);
  for (const int64_t count : {0, 1, 2, 7, 64, 1000, 100'003}) {
    for (const int64_t grain : {-1, 0, 1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
      std::atomic<int64_t> num_short{0};
      parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        if (end - begin < grain && end != count) ++num_short;
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      for (auto& visit : visits) CHECK(visit == 1);
      CHECK(num_short == 0);
    }
  }
}

void caller_takes_part_and_others_join() {
  const Configured three(3);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  parallel_for(60, 1, [&](int64_t, int64_t) {
    { const std::lock_guard lock(mutex); threads.insert(std::this_thread::get_id()); }
    std::this_thread::sleep_for(3ms);
  });
  CHECK(threads.count(std::this_thread::get_id()) == 1);
  CHECK(threads.size() >= 2);
  CHECK(threads.size() <= 3);
}

void no_more_threads_compute_than_configured() {
  const Configured three(3);
  std::atomic<int> now{0}, most{0};
  const auto body = [&](int64_t, int64_t) {
    const int here = ++now;
    for (int seen = most; here > seen && !most.compare_exchange_weak(seen, here);) {
    }
    std::this_thread::sleep_for(200us);
    --now;
  };
  // Two threads of a framework with nested loops.
  const auto framework = [&] {
    for (int i = 0; i < 20; ++i) {
      parallel_for(6, 1, [&](int64_t, int64_t) { parallel_for(4, 1, body); });
    }
  };
  std::thread other(framework);
  framework();
  other.join();
  // A helper that joined just before the second caller started ends its range first.
  CHECK(most >= 2);
  CHECK(most <= 4);
}

void a_loop_ends_while_all_workers_are_blocked() {
  const Configured two(2);
  static std::counting_semaphore<> gate{0};
  CallTask blockers[2];
  for (CallTask& task : blockers) {
    task.function = [] { gate.acquire(); };
    Pool::process().enqueue(task);
  }
  std::atomic<int64_t> sum{0};
  parallel_for(1000, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  CHECK(sum == 1000);
  gate.release(2);
  for (CallTask& task : blockers) task.ended.acquire();
}

// Returns after two tasks have run concurrently on pool threads.
void meet_on_two_workers() {
  static std::atomic<int> num_met{0};
  num_met = 0;
  CallTask pair[2];
  for (CallTask& task : pair) {
    task.function = [] {
      num_met += Pool::is_pool_thread();
      while (num_met < 2) std::this_thread::yield();
    };
    Pool::process().enqueue(task);
  }
  for (CallTask& task : pair) task.ended.acquire();
}

void all_threads_are_workers_while_the_caller_waits() {
  const Configured two(2);
  meet_on_two_workers();
  CHECK(!Pool::is_pool_thread());
}

void a_busy_pool_rejects_configure() {
  const Configured two(2);
  static std::counting_semaphore<> gate{0};
  CallTask task;
  task.function = [] { gate.acquire(); };
  Pool::process().enqueue(task);
  CHECK_THROWS(Pool::process().configure(3), PoolBusyError);
  CHECK(Pool::process().num_threads() == 2);
  gate.release();
  task.ended.acquire();
  Pool::process().configure(3);
  CHECK(Pool::process().num_threads() == 3);
  CHECK_THROWS(Pool::process().configure(-1), std::invalid_argument);
  CHECK_THROWS(Pool::process().configure(Pool::max_threads + 1), std::invalid_argument);
}

void lent_executor_is_the_pool() {
  const Configured two(2);
  const SparringExecutor* executor = process_executor();
  CHECK(executor->struct_bytes == sizeof(SparringExecutor));
  CHECK(executor->concurrency == 2);
  std::atomic<int64_t> sum{0};
  executor->parallel_for(
      executor->self, 10'000, 10,
      [](void* context, int64_t begin, int64_t end) {
        *static_cast<std::atomic<int64_t>*>(context) += end - begin;
      },
      &sum);
  CHECK(sum == 10'000);
}

int status_of_child(int (*child)()) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(child());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int64_t looped_sum() {
  std::atomic<int64_t> sum{0};
  parallel_for(100'000, 10, [&](int64_t begin, int64_t end) { sum += end - begin; });
  return sum;
}

void forked_child_of_an_idle_pool_has_all_threads() {
  const Configured two(2);
  CHECK(looped_sum() == 100'000);
  CHECK(status_of_child([] {
          meet_on_two_workers();
          return looped_sum() == 100'000 && Pool::process().num_threads() == 2 ? 0 : 1;
        }) == 0);
  CHECK(looped_sum() == 100'000);
  meet_on_two_workers();
}

void forked_child_of_a_busy_pool_still_works() {
#ifdef __SANITIZE_THREAD__
  std::puts("skipped: ThreadSanitizer allows no new thread in a child of a threaded process");
  return;
#endif
  const Configured two(2);
  static std::counting_semaphore<> gate{0};
  CallTask task;
  task.function = [] { gate.acquire(); };
  Pool::process().enqueue(task);
  const int status = status_of_child([] {
    CallTask in_child;
    in_child.function = [] { std::this_thread::yield(); };
    Pool::process().enqueue(in_child);
    in_child.ended.acquire();
    return looped_sum() == 100'000 && Pool::process().num_threads() == 1 ? 0 : 1;
  });
  gate.release();
  task.ended.acquire();
  CHECK(status == 0);
  CHECK(looped_sum() == 100'000);
}

}  // namespace
}  // namespace sparring::execution

int main() {
  using namespace sparring::execution;
  return sparring::testing::run({
      {"every index is visited once", every_index_is_visited_once},
      {"the caller takes part and others join", caller_takes_part_and_others_join},
      {"no more threads compute than configured", no_more_threads_compute_than_configured},
      {"a loop ends while all workers are blocked", a_loop_ends_while_all_workers_are_blocked},
      {"all threads are workers while the caller waits",
       all_threads_are_workers_while_the_caller_waits},
      {"a busy pool rejects configure", a_busy_pool_rejects_configure},
      {"the exported executor is the pool", lent_executor_is_the_pool},
      {"a forked child of an idle pool has all threads",
       forked_child_of_an_idle_pool_has_all_threads},
      {"a forked child of a busy pool still works", forked_child_of_a_busy_pool_still_works},
  });
}
