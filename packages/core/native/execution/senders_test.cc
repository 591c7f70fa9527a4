// The sender algebra: values, errors, loops, and the threads that run them.
#include "execution/senders.h"

#include <atomic>
#include <latch>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "execution/detached_task.h"
#include "execution/parallel_for.h"
#include "execution/pool_scheduler.h"
#include "testing/check.h"
#include "testing/wait_for.h"

namespace sparring::execution {
namespace {

using std::this_thread::get_id;
using testing::wait_for;

const executor_scheduler threads(process_executor());
const executor_scheduler alone(nullptr);
const pool_scheduler pool;

// sync_wait accepts only senders of an executor, which need no thread except the caller's.
template <typename S>
concept can_be_waited_for = requires(S input) { sync_wait(std::move(input)); };
static_assert(can_be_waited_for<decltype(schedule(threads) | bulk(1, [](int64_t) {}))>);
static_assert(!can_be_waited_for<decltype(schedule(pool))>);
static_assert(!can_be_waited_for<decltype(schedule(pool) | then([] {}))>);

template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void values_pass_through_then() {
  auto result = sync_wait(schedule(threads) | then([] { return std::string("b"); }) |
                          then([](std::string text) { return text + "2"; }));
  CHECK(result == std::tuple<std::string>("b2"));
  CHECK(sync_wait(schedule(threads)) == std::tuple<>());
  auto moved = sync_wait(schedule(alone) | then([] { return std::make_unique<int>(3); }) |
                         bulk(1, [](int64_t, std::unique_ptr<int>& n) { ++*n; }) |
                         then([](std::unique_ptr<int> n) { return n; }));
  CHECK(*std::get<0>(*moved) == 4);
}

void nothing_runs_before_start() {
  bool has_run = false;
  auto work = schedule(threads) | then([&] { has_run = true; });
  CHECK(!has_run);
  sync_wait(std::move(work));
  CHECK(has_run);
}

void an_exception_skips_later_senders_and_is_thrown_by_sync_wait() {
  bool has_run = false;
  CHECK(error_of([&] {
          sync_wait(schedule(threads) | then([] { throw std::runtime_error("a"); }) |
                    bulk(3, [&](int64_t) { has_run = true; }) | then([&] { has_run = true; }));
        }) == "a");
  CHECK(!has_run);
}

struct ThrowsWhenMoved {
  ThrowsWhenMoved() = default;
  ThrowsWhenMoved(ThrowsWhenMoved&& other) : is_armed(other.is_armed) {
    if (is_armed) throw std::runtime_error("moved");
  }
  bool is_armed = false;
};

void a_value_whose_move_throws_is_an_error() {
  CHECK(error_of([] {
          sync_wait(schedule(threads) | then([] { return ThrowsWhenMoved(); }) |
                    bulk(1, [](int64_t, ThrowsWhenMoved& made) { made.is_armed = true; }));
        }) == "moved");
}

void bulk_covers_all_indices_and_keeps_values() {
  for (const executor_scheduler& place : {threads, alone}) {
    std::vector<int> visits(10'000);
    auto result = sync_wait(schedule(place) | then([] { return 5; }) |
                            bulk(10'000, [&](int64_t i, int by) {
                              visits[static_cast<size_t>(i)] += by;
                            }));
    CHECK(result == std::tuple<int>(5));
    CHECK(visits == std::vector<int>(10'000, 5));
  }
  sync_wait(schedule(threads) | bulk(0, [](int64_t) { throw std::runtime_error("called"); }));
}

void ranges_of_bulk_chunked_have_at_least_the_grain() {
  std::atomic<int64_t> num_seen{0}, num_short{0};
  sync_wait(schedule(threads) | bulk_chunked(1'000, 64, [&](int64_t begin, int64_t end) {
              if (end - begin < 64 && end != 1'000) ++num_short;
              num_seen += end - begin;
            }));
  CHECK(num_seen == 1'000);
  CHECK(num_short == 0);
  // Too few elements for two ranges run as one range on the caller.
  std::vector<std::thread::id> seen;
  sync_wait(schedule(threads) |
            bulk_chunked(127, 64, [&](int64_t, int64_t) { seen.push_back(get_id()); }));
  CHECK(seen == std::vector<std::thread::id>{get_id()});
}

void an_exception_in_a_loop_is_the_error() {
  for (const executor_scheduler& place : {threads, alone}) {
    CHECK(error_of([&] {
            sync_wait(schedule(place) | bulk(1'000, [](int64_t i) {
                        if (i == 357) throw std::runtime_error("357");
                      }));
          }) == "357");
  }
}

void loops_nest_and_wait_on_workers() {
  std::atomic<int64_t> num_seen{0};
  const auto inner = [&](int64_t) {
    sync_wait(schedule(threads) | bulk(10, [&](int64_t) { ++num_seen; }));
  };
  sync_wait(schedule(threads) | bulk(10, inner));
  CHECK(num_seen == 100);
  wait_for(schedule(pool) | then([&] {
             CHECK(Pool::is_pool_thread());
             sync_wait(schedule(threads) | bulk(10, inner));
           }));
  CHECK(num_seen == 200);
}

void an_executor_runs_on_the_caller_and_others() {
  auto result = sync_wait(schedule(threads) | then([] { return get_id(); }));
  CHECK(result == std::tuple<std::thread::id>(get_id()));
  std::mutex mutex;
  std::set<std::thread::id> seen;
  sync_wait(schedule(threads) | bulk(60, [&](int64_t) {
              {
                const std::lock_guard lock(mutex);
                seen.insert(get_id());
              }
              std::this_thread::sleep_for(std::chrono::milliseconds(3));
            }));
  CHECK(seen.count(get_id()) == 1);
  CHECK(seen.size() >= 2);
  CHECK(seen.size() <= 3);
}

void the_pool_is_another_thread() {
  const auto here = get_id();
  bool was_elsewhere = false;
  wait_for(schedule(pool) | then([&] { was_elsewhere = Pool::is_pool_thread() && get_id() != here; }));
  CHECK(was_elsewhere);
}

void exceptions_are_thrown_into_coroutines() {
  CHECK(error_of([] {
          wait_for(schedule(pool) | then([] { throw std::runtime_error("late"); }));
        }) == "late");
}

detached_task hop_often(int times, std::shared_ptr<int> guard, std::atomic<int>& on_pool,
                        std::latch& ended) {
  for (int i = 0; i < times; ++i) {
    co_await schedule(pool);
    on_pool += Pool::is_pool_thread();
  }
  guard.reset();
  ended.count_down();
}

void tasks_change_schedulers_concurrently_and_free_their_memory() {
  std::atomic<int> on_pool{0};
  std::latch ended(3);
  auto guard = std::make_shared<int>(1);
  for (int i = 0; i < 3; ++i) hop_often(3'000, guard, on_pool, ended);
  ended.wait();
  CHECK(on_pool == 9'000);
  CHECK(guard.use_count() == 1);
}

detached_task add(std::atomic<int64_t>& sum, int64_t i, std::latch& ended) {
  co_await schedule(pool);
  sum += i;
  ended.count_down();
}

void a_hundred_thousand_tasks_all_run() {
  constexpr int64_t num_tasks = 100'000;
  std::atomic<int64_t> sum{0};
  std::latch ended(num_tasks);
  for (int64_t i = 0; i < num_tasks; ++i) add(sum, i, ended);
  ended.wait();
  CHECK(sum == num_tasks * (num_tasks - 1) / 2);
}

}  // namespace
}  // namespace sparring::execution

int main() {
  using namespace sparring::execution;
  Pool::process().configure(3);
  return sparring::testing::run({
      {"values pass through then", values_pass_through_then},
      {"nothing runs before start", nothing_runs_before_start},
      {"an exception skips later senders and is thrown by sync_wait",
       an_exception_skips_later_senders_and_is_thrown_by_sync_wait},
      {"a value whose move throws is an error", a_value_whose_move_throws_is_an_error},
      {"bulk covers all indices and keeps values", bulk_covers_all_indices_and_keeps_values},
      {"ranges of bulk_chunked have at least the grain", ranges_of_bulk_chunked_have_at_least_the_grain},
      {"an exception in a loop is the error", an_exception_in_a_loop_is_the_error},
      {"loops nest and wait on workers", loops_nest_and_wait_on_workers},
      {"an executor runs on the caller and others", an_executor_runs_on_the_caller_and_others},
      {"the pool is another thread", the_pool_is_another_thread},
      {"exceptions are thrown into coroutines", exceptions_are_thrown_into_coroutines},
      {"tasks change schedulers concurrently and free their memory",
       tasks_change_schedulers_concurrently_and_free_their_memory},
      {"a hundred thousand tasks all run", a_hundred_thousand_tasks_all_run},
  });
}
