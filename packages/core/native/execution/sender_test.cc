// The sender algebra: values, errors, stopped, and where things run.
#include <atomic>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "execution/execution.h"
#include "testing/check.h"

namespace sparring::execution {
namespace {

using std::this_thread::get_id;

const pool_scheduler pool;

std::exception_ptr error_of(const char* message) {
  return std::make_exception_ptr(std::runtime_error(message));
}

template <typename S>
std::string error_in(S&& input) {
  try {
    sync_wait(std::forward<S>(input));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void values_pass_through_then() {
  auto result = sync_wait(just(2, std::string("b")) | then([](int n, std::string text) {
                            return text + std::to_string(n);
                          }));
  CHECK(result == std::tuple<std::string>("b2"));
  CHECK(sync_wait(just()) == std::tuple<>());
  CHECK((sync_wait(just(1, 2)) == std::tuple<int, int>(1, 2)));
}

void move_only_values_pass() {
  auto result = sync_wait(just(std::make_unique<int>(3)) | continues_on(pool) |
                          then([](std::unique_ptr<int> n) {
                            ++*n;
                            return n;
                          }));
  CHECK(*std::get<0>(*result) == 4);
}

void nothing_runs_before_start() {
  bool has_run = false;
  auto work = just() | then([&] { has_run = true; });
  CHECK(!has_run);
  sync_wait(std::move(work));
  CHECK(has_run);
}

void an_exception_skips_then_and_is_thrown_by_sync_wait() {
  bool has_run = false;
  CHECK(error_in(just() | then([] { throw std::runtime_error("a"); }) |
                 then([&] { has_run = true; })) == "a");
  CHECK(!has_run);
  CHECK(error_in(just_error<int>(error_of("b")) | continues_on(pool)) == "b");
}

void stopped_gives_no_result_and_skips_then() {
  bool has_run = false;
  CHECK(!sync_wait(just_stopped<int>() | then([&](int) { has_run = true; })));
  CHECK(!sync_wait(just_stopped() | continues_on(pool)));
  CHECK(!has_run);
}

void upon_error_recovers() {
  auto result = sync_wait(just(1) | then([](int) -> int { throw std::runtime_error("a"); }) |
                          upon_error([](std::exception_ptr) { return 7; }));
  CHECK(result == std::tuple<int>(7));
  CHECK(sync_wait(just(1) | upon_error([](std::exception_ptr) { return 7; })) ==
        std::tuple<int>(1));
}

void schedule_and_continues_on_change_the_thread() {
  const auto here = get_id();
  auto [scheduled] = *sync_wait(schedule(pool) | then([] { return get_id(); }));
  CHECK(scheduled != here);
  auto result = sync_wait(just() | then([] { return get_id(); }) | continues_on(pool) |
                          then([](std::thread::id before) {
                            CHECK(Pool::is_pool_thread());
                            return before != get_id();
                          }));
  CHECK(std::get<0>(*result));
  auto [inlined] = *sync_wait(schedule(inline_scheduler{}) | then([] { return get_id(); }));
  CHECK(inlined == here);
}

void when_all_joins_values_in_order() {
  auto result = sync_wait(when_all(schedule(pool) | then([] { return 1; }), just(), just(2, 'c'),
                                   just(std::string("d")) | continues_on(pool)));
  CHECK((result == std::tuple<int, int, char, std::string>(1, 2, 'c', "d")));
}

void when_all_with_one_error_waits_for_the_others() {
  std::atomic<int> num_ended{0};
  const auto slow = [&] {
    return schedule(pool) | then([&] {
             std::this_thread::sleep_for(std::chrono::milliseconds(20));
             ++num_ended;
           });
  };
  CHECK(error_in(when_all(slow(), just_error<>(error_of("one")), slow())) == "one");
  CHECK(num_ended == 2);
  CHECK(!sync_wait(when_all(just(1), just_stopped<int>(), slow())));
  CHECK(num_ended == 3);
}

struct ThrowsWhenMoved {
  ThrowsWhenMoved() = default;
  ThrowsWhenMoved(ThrowsWhenMoved&& other) : is_armed(other.is_armed) {
    if (is_armed) throw std::runtime_error("moved");
  }
  ThrowsWhenMoved(const ThrowsWhenMoved&) = default;
  bool is_armed = false;
};

void a_value_whose_move_throws_is_an_error() {
  const auto arm = [] {
    return just() | then([] { return ThrowsWhenMoved(); }) | then([](ThrowsWhenMoved&& made) {
             made.is_armed = true;
             return ThrowsWhenMoved(std::move(made));
           });
  };
  CHECK(error_in(arm() | continues_on(pool)) == "moved");
  CHECK(error_in(when_all(arm(), just(1))) == "moved");
}

void bulk_covers_all_indices_and_keeps_values() {
  std::vector<int> visits(10'000);
  auto result = sync_wait(schedule(pool) | then([] { return 5; }) |
                          bulk(10'000, [&](int64_t i, int by) {
                            visits[static_cast<size_t>(i)] += by;
                          }));
  CHECK(result == std::tuple<int>(5));
  CHECK(visits == std::vector<int>(10'000, 5));
  int64_t sum = 0;  // no pool thread: one thread, so no race
  sync_wait(just() | bulk(100, [&](int64_t i) { sum += i; }));
  CHECK(sum == 4950);
  CHECK(error_in(schedule(pool) | bulk(1000, [](int64_t i) {
                   if (i == 357) throw std::runtime_error("357");
                 })) == "357");
}

void sync_wait_on_a_pool_thread_is_refused() {
  auto result = sync_wait(schedule(pool) | then([] {
                            try {
                              sync_wait(schedule(pool));
                            } catch (const std::logic_error&) {
                              return true;
                            }
                            return false;
                          }));
  CHECK(std::get<0>(*result));
}

void a_hundred_thousand_tasks_all_run() {
  constexpr int64_t num_tasks = 100'000;
  std::atomic<int64_t> sum{0}, num_ended{0};
  struct counting_receiver {
    void set_value() noexcept { num_ended->fetch_add(1, std::memory_order_acq_rel); }
    void set_error(std::exception_ptr) noexcept { std::abort(); }
    void set_stopped() noexcept { std::abort(); }
    std::atomic<int64_t>* num_ended;
  };
  const auto work = [&](int64_t i) {
    return execution::connect(schedule(pool) | then([&sum, i] { sum += i; }),
                              counting_receiver{&num_ended});
  };
  using operation = decltype(work(0));
  struct held {  // an operation cannot be moved, only made in place
    explicit held(decltype(work)& make, int64_t i) : state(make(i)) {}
    operation state;
  };
  std::vector<std::unique_ptr<held>> all;
  for (int64_t i = 0; i < num_tasks; ++i) {
    all.push_back(std::make_unique<held>(work, i));
    all.back()->state.start();
  }
  while (num_ended.load(std::memory_order_acquire) != num_tasks) std::this_thread::yield();
  CHECK(sum == num_tasks * (num_tasks - 1) / 2);
}

}  // namespace
}  // namespace sparring::execution

int main() {
  using namespace sparring::execution;
  Pool::process().configure(3);
  return sparring::testing::run({
      {"values pass through then", values_pass_through_then},
      {"move-only values pass", move_only_values_pass},
      {"nothing runs before start", nothing_runs_before_start},
      {"an exception skips then and is thrown by sync_wait",
       an_exception_skips_then_and_is_thrown_by_sync_wait},
      {"stopped gives no result and skips then", stopped_gives_no_result_and_skips_then},
      {"upon_error recovers", upon_error_recovers},
      {"schedule and continues_on change the thread", schedule_and_continues_on_change_the_thread},
      {"when_all joins values in order", when_all_joins_values_in_order},
      {"when_all with one error waits for the others",
       when_all_with_one_error_waits_for_the_others},
      {"a value whose move throws is an error", a_value_whose_move_throws_is_an_error},
      {"bulk covers all indices and keeps values", bulk_covers_all_indices_and_keeps_values},
      {"sync_wait on a pool thread is refused", sync_wait_on_a_pool_thread_is_refused},
      {"a hundred thousand tasks all run", a_hundred_thousand_tasks_all_run},
  });
}
