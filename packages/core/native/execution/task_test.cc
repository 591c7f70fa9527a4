// Coroutines: tasks that await senders and each other.
#include "execution/task.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "execution/execution.h"
#include "testing/check.h"

namespace sparring::execution {
namespace {

const pool_scheduler pool;

// Sanitizers keep the compiler from making symmetric transfer a tail call.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
constexpr int num_nested = 1'000;
#else
constexpr int num_nested = 1'000'000;
#endif

task<int> give(int value) { co_return value; }

task<int> fail() {
  co_await just();
  throw std::runtime_error("failed");
}

task<std::unique_ptr<int>> give_move_only() { co_return std::make_unique<int>(9); }

void a_task_is_a_sender() {
  CHECK(sync_wait(give(4)) == std::tuple<int>(4));
  CHECK(sync_wait(give(4) | continues_on(pool) | then([](int n) { return n + 1; })) ==
        std::tuple<int>(5));
  CHECK(sync_wait(when_all(give(1), give(2))) == (std::tuple<int, int>(1, 2)));
  CHECK(*std::get<0>(*sync_wait(give_move_only())) == 9);
}

void a_task_is_lazy_and_may_be_dropped() {
  auto guard = std::make_shared<int>(1);
  bool has_run = false;
  const auto make = [](std::shared_ptr<int>, bool* flag) -> task<> {
    *flag = true;
    co_return;
  };
  { auto dropped = make(guard, &has_run); }
  CHECK(!has_run);
  CHECK(guard.use_count() == 1);
}

task<std::string> await_each_kind() {
  co_await just();
  const int one = co_await just(1);
  const auto [two, three] = co_await just(2, 3);
  const int four = co_await give(4);
  co_await schedule(pool);
  if (!Pool::is_pool_thread()) co_return "awaiting schedule stayed";
  const auto [five, six] = co_await when_all(give(5), schedule(pool) | then([] { return 6; }));
  co_return std::to_string(one) + std::to_string(two) + std::to_string(three) +
      std::to_string(four) + std::to_string(five) + std::to_string(six);
}

void every_sender_can_be_awaited() {
  CHECK(sync_wait(await_each_kind()) == std::tuple<std::string>("123456"));
}

task<std::string> catch_failure() {
  std::string caught;
  try {
    co_await fail();
  } catch (const std::runtime_error& error) {
    caught = error.what();
  }
  try {
    co_await (schedule(pool) | then([] { throw std::runtime_error(" twice"); }));
  } catch (const std::runtime_error& error) {
    caught += error.what();
  }
  co_return caught;
}

void exceptions_travel_into_and_out_of_tasks() {
  CHECK(sync_wait(catch_failure()) == std::tuple<std::string>("failed twice"));
  CHECK_THROWS(sync_wait(fail()), std::runtime_error);
  CHECK_THROWS(sync_wait(give(1) | continues_on(pool) |
                         then([](int) { throw std::runtime_error("late"); })),
               std::runtime_error);
}

task<> stop_at(bool* has_gone_on, std::shared_ptr<int>, bool is_elsewhere) {
  if (is_elsewhere) co_await schedule(pool);
  co_await just_stopped();
  *has_gone_on = true;
}

task<int> await_stopped(bool* has_gone_on, std::shared_ptr<int> guard, bool is_elsewhere) {
  co_await stop_at(has_gone_on, guard, is_elsewhere);
  *has_gone_on = true;
  co_return 1;
}

void stopped_ends_all_awaiting_tasks_and_frees_them() {
  for (const bool is_elsewhere : {false, true}) {
    bool has_gone_on = false;
    auto guard = std::make_shared<int>(1);
    CHECK(!sync_wait(await_stopped(&has_gone_on, guard, is_elsewhere)));
    CHECK(!has_gone_on);
    CHECK(guard.use_count() == 1);
  }
}

task<int64_t> await_many_tasks() {
  int64_t sum = 0;
  for (int i = 0; i < num_nested; ++i) sum += co_await give(1);
  co_return sum;
}

task<int64_t> await_many_senders() {
  int64_t sum = 0;
  for (int i = 0; i < 1'000'000; ++i) sum += co_await just(1);
  co_return sum;
}

task<int> nest(int depth) {
  if (depth == 0) co_return 0;
  co_return 1 + co_await nest(depth - 1);
}

void long_chains_do_not_grow_the_stack() {
  CHECK(sync_wait(await_many_senders()) == std::tuple<int64_t>(1'000'000));
  CHECK(sync_wait(await_many_tasks()) == std::tuple<int64_t>(num_nested));
  CHECK(sync_wait(nest(num_nested / 10)) == std::tuple<int>(num_nested / 10));
}

task<int> hop_often(int num_hops) {
  int num_on_pool = 0;
  for (int i = 0; i < num_hops; ++i) {
    co_await schedule(pool);
    num_on_pool += Pool::is_pool_thread();
  }
  co_return num_on_pool;
}

void tasks_hop_side_by_side() {
  const auto all = sync_wait(when_all(hop_often(3000), hop_often(3000), hop_often(3000)));
  CHECK(all == (std::tuple<int, int, int>(3000, 3000, 3000)));
}

}  // namespace
}  // namespace sparring::execution

int main() {
  using namespace sparring::execution;
  Pool::process().configure(3);
  return sparring::testing::run({
      {"a task is a sender", a_task_is_a_sender},
      {"a task is lazy and may be dropped", a_task_is_lazy_and_may_be_dropped},
      {"every sender can be awaited", every_sender_can_be_awaited},
      {"exceptions travel into and out of tasks", exceptions_travel_into_and_out_of_tasks},
      {"stopped ends all awaiting tasks and frees them",
       stopped_ends_all_awaiting_tasks_and_frees_them},
      {"long chains do not grow the stack", long_chains_do_not_grow_the_stack},
      {"tasks hop side by side", tasks_hop_side_by_side},
  });
}
