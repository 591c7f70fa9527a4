// Loops on the threads of a framework, which this test creates for each loop.
#include "execution/framework_threads.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "execution/parallel_for.h"
#include "execution/pool.h"
#include "kernels/parallel.h"
#include "testing/check.h"

namespace sparring::execution {
namespace {

std::atomic<uint32_t> num_offered{4};
std::atomic<int> num_loops{0};
thread_local bool is_of_framework = false;
thread_local bool is_inside_region = false;

int32_t loop_on_new_threads(int64_t begin, int64_t end, int64_t grain,
                            void (*body)(int64_t, int64_t, void*), void* context) {
  CHECK(begin == 0 && grain == 1 && end <= num_offered);
  ++num_loops;
  // Like torch inside one of its own loops.
  if (is_inside_region) {
    body(begin, end, context);
    return 0;
  }
  is_inside_region = true;
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < end; ++i) {
    threads.emplace_back([=] {
      is_of_framework = is_inside_region = true;
      body(i, i + 1, context);
    });
  }
  body(0, 1, context);
  for (std::thread& each : threads) each.join();
  is_inside_region = false;
  return 0;
}

int32_t fail(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*) {
  ++num_loops;
  return 1;
}

int32_t fail_late(int64_t, int64_t, int64_t, void (*body)(int64_t, int64_t, void*), void* context) {
  std::thread([=] { body(1, 2, context); }).join();
  ++num_loops;
  return 1;
}

int32_t offer(uint32_t* num_threads) {
  *num_threads = num_offered;
  return 0;
}

// The pool and the framework have `threads` threads each.
struct Borrowed {
  explicit Borrowed(int threads, decltype(FrameworkThreads::parallel_for) loop = loop_on_new_threads) {
    Pool::process().configure(threads);
    num_offered = static_cast<uint32_t>(threads);
    num_loops = 0;
    borrow({loop, offer});
  }
  ~Borrowed() {
    give_back();
    Pool::process().configure(0);
  }
};

void check_each_index_once(int64_t count, int64_t grain) {
  std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
  });
  for (auto& visit : visits) CHECK(visit == 1);
}

void every_index_is_visited_once() {
  const Borrowed four(4);
  for (const int64_t count : {1, 2, 7, 64, 1000, 100'003}) {
    for (const int64_t grain : {1, 3, 64}) check_each_index_once(count, grain);
  }
  CHECK(num_loops > 0);
}

void ranges_run_on_the_caller_and_the_framework() {
  const Borrowed three(3);
  std::mutex mutex;
  std::set<std::thread::id> others;
  bool is_caller_there = false;
  const auto caller = std::this_thread::get_id();
  parallel_for(60, 1, [&](int64_t, int64_t) {
    {
      const std::lock_guard lock(mutex);
      if (std::this_thread::get_id() == caller) {
        is_caller_there = true;
      } else {
        CHECK(is_of_framework);
        others.insert(std::this_thread::get_id());
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  CHECK(is_caller_there && !others.empty() && others.size() <= 2);
  CHECK(Pool::process().num_computing() == 0);
}

void loops_nest() {
  for (const int64_t num_outer : {int64_t{2}, int64_t{3}, int64_t{64}}) {
    const Borrowed four(4);
    std::atomic<int64_t> sum{0};
    std::mutex mutex;
    std::set<std::thread::id> threads;
    parallel_for(num_outer, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        parallel_for(64, 1, [&](int64_t first, int64_t last) {
          sum += last - first;
          if (num_outer >= 4) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          const std::lock_guard lock(mutex);
          threads.insert(std::this_thread::get_id());
        });
      }
    });
    CHECK(sum == 64 * num_outer);
    // With fewer outer ranges than threads, some threads remain for the inner loops.
    if (num_outer < 4) CHECK(threads.size() > static_cast<size_t>(num_outer));
    // Outer ranges ran on the pool, whose threads leave a moment after the last range has ended.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (Pool::process().num_computing() != 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    CHECK(Pool::process().num_computing() == 0);
  }
}

void a_loop_of_a_frameworks_thread_stays_on_that_thread() {
  const Borrowed two(2);
  std::atomic<int> num_elsewhere{0};
  parallel_for(64, 1, [&](int64_t, int64_t) {
    if (!is_of_framework) return;
    const auto here = std::this_thread::get_id();
    parallel_for(1000, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != here) ++num_elsewhere;
    });
  });
  CHECK(num_elsewhere == 0);
}

void an_exception_is_thrown_after_all_ranges_have_ended() {
  const Borrowed two(2);
  std::atomic<int> num_running{0};
  bool is_caught = false;
  try {
    kernels::parallel_for(process_executor(), 64, 1, [&](int64_t begin, int64_t) {
      ++num_running;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      --num_running;
      if (begin > 8) throw std::runtime_error("row 9");
    });
  } catch (const std::runtime_error& error) {
    is_caught = std::string(error.what()) == "row 9";
  }
  CHECK(is_caught && num_running == 0 && num_loops == 1);
}

void if_a_framework_fails_the_caller_runs_the_loop() {
  for (auto* const loop : {fail, fail_late}) {
    const Borrowed two(2, loop);
    check_each_index_once(1000, 1);
    CHECK(num_loops == 1);
  }
}

void a_framework_with_too_few_threads_is_not_used() {
  const Borrowed four(4);
  num_offered = 3;
  check_each_index_once(1000, 1);
  CHECK(num_loops == 0);
  check_each_index_once(30, 10);  // three ranges: fewer than the pool's threads
  CHECK(num_loops == 0);
}

void other_threads_stay_on_the_pool() {
  const Borrowed two(2);
  std::thread([] { check_each_index_once(1000, 1); }).join();
  CHECK(num_loops == 0);
  check_each_index_once(1000, 1);
  CHECK(num_loops == 1);
}

void threads_can_be_given_back() {
  const Borrowed two(2);
  give_back();
  check_each_index_once(1000, 1);
  CHECK(num_loops == 0);
}

void a_forked_child_borrows_nothing() {
#ifdef __SANITIZE_THREAD__
  std::puts("skipped: ThreadSanitizer allows no new thread in a child of a threaded process");
  return;
#endif
  const Borrowed two(2);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    check_each_index_once(1000, 1);
    borrow({loop_on_new_threads, offer});
    check_each_index_once(1000, 1);
    _exit(num_loops == 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  check_each_index_once(1000, 1);
  CHECK(num_loops == 1);
}

}  // namespace
}  // namespace sparring::execution

int main() {
  using namespace sparring::execution;
  return sparring::testing::run({
      {"every index is visited once", every_index_is_visited_once},
      {"ranges run on the caller and the framework", ranges_run_on_the_caller_and_the_framework},
      {"loops nest", loops_nest},
      {"a loop of a framework's thread stays on that thread",
       a_loop_of_a_frameworks_thread_stays_on_that_thread},
      {"an exception is thrown after all ranges have ended",
       an_exception_is_thrown_after_all_ranges_have_ended},
      {"if a framework fails, the caller runs the loop",
       if_a_framework_fails_the_caller_runs_the_loop},
      {"a framework with too few threads is not used", a_framework_with_too_few_threads_is_not_used},
      {"other threads stay on the pool", other_threads_stay_on_the_pool},
      {"threads can be given back", threads_can_be_given_back},
      {"a forked child borrows nothing", a_forked_child_borrows_nothing},
  });
}
