// Waits for streams of a device on the pool.
#include "execution/stream_scheduler.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <latch>
#include <string>
#include <thread>

#include "execution/detached_task.h"
#include "execution/pool.h"
#include "testing/check.h"
#include "testing/fake_streams.h"
#include "testing/wait_for.h"

namespace sparring::execution {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::FakeDevice;
using testing::FakeStream;
using testing::wait_for;

void sleep_for(milliseconds time) { std::this_thread::sleep_for(time); }

// Devices live as long as the process.
FakeDevice& make_device() {
  static auto* const devices = new std::deque<FakeDevice>;
  return devices->emplace_back();
}

auto on_stream(const FakeDevice& device, FakeStream& stream,
               std::chrono::nanoseconds deadline = std::chrono::seconds(60)) {
  return schedule(stream_scheduler(device.streams(), &stream, deadline));
}

void it_resumes_on_the_pool_when_the_stream_has_reached_the_position() {
  FakeDevice& device = make_device();
  FakeStream stream;
  std::atomic<int> done{0};
  stream.put([&] {
    sleep_for(milliseconds(30));
    done = 1;
  });
  std::string seen;
  wait_for(on_stream(device, stream) | then([&] {
             seen = std::to_string(done) + (Pool::is_pool_thread() ? " pool" : " elsewhere") +
                    (FakeDevice::is_device_thread ? " device" : "");
           }));
  CHECK(seen == "1 pool");
  for (int i = 0; i < 10000 && device.num_events != 0; ++i) sleep_for(milliseconds(1));
  CHECK(device.num_events == 0);
}

void work_that_is_enqueued_later_is_not_waited_for() {
  FakeDevice& device = make_device();
  FakeStream stream;
  std::atomic<bool> may_end{false};
  wait_for(on_stream(device, stream) | then([&] {
             stream.put([&] {
               while (!may_end) sleep_for(milliseconds(1));
             });
           }));
  may_end = true;
}

detached_task hop_over(const FakeDevice& device, FakeStream& find, FakeStream& wire,
                       std::string& order, std::latch& ended) {
  for (int hop = 0; hop < 100; ++hop) {
    find.put([&order] { order += 'f'; });
    co_await on_stream(device, find);
    if (!Pool::is_pool_thread() || FakeDevice::is_device_thread) order += " not on the pool ";
    wire.put([&order] { order += 'w'; });
    co_await on_stream(device, wire);
  }
  ended.count_down();
}

void coroutines_await_streams_in_turn() {
  FakeDevice& device = make_device();
  FakeStream find;
  FakeStream wire;
  std::string order;
  std::string expected;
  for (int hop = 0; hop < 100; ++hop) expected += "fw";
  std::latch ended(1);
  hop_over(device, find, wire, order, ended);
  ended.wait();
  CHECK(order == expected);
}

detached_task await_one(const FakeDevice& device, FakeStream& stream, std::latch& ended) {
  co_await on_stream(device, stream);
  ended.count_down();
}

void several_streams_are_awaited_at_once() {
  FakeDevice& device = make_device();
  FakeStream first;
  FakeStream second;
  std::atomic<int> sum{0};
  // Each waits until the other has begun, so they would never end one after the other.
  std::atomic<int> begun{0};
  for (FakeStream* each : {&first, &second}) {
    each->put([&] {
      for (++begun; begun != 2;) std::this_thread::yield();
      ++sum;
    });
  }
  std::latch ended(2);
  await_one(device, first, ended);
  await_one(device, second, ended);
  ended.wait();
  CHECK(sum == 2);
}

void a_lost_device_is_an_error_not_a_hang() {
  FakeDevice& device = make_device();
  FakeStream stream;
  // Lost before: nothing can be enqueued on the stream.
  device.is_lost = true;
  CHECK_THROWS(wait_for(on_stream(device, stream)), StreamLostError);
  // Lost during the wait: no host call runs, and only polling the event detects it.
  device.is_lost = false;
  device.swallows_host_calls = true;
  std::thread loses([&] {
    sleep_for(milliseconds(20));
    device.is_lost = true;
  });
  const auto begin = steady_clock::now();
  try {
    wait_for(on_stream(device, stream));
    CHECK(false);
  } catch (const StreamLostError& error) {
    CHECK(std::string(error.what()).find("fake:0: work on a stream failed: the device was "
                                         "lost") == 0);
  }
  CHECK(steady_clock::now() - begin < std::chrono::seconds(5));
  loses.join();
  CHECK(num_stream_waits() == 0);
}

void errors_are_thrown_into_coroutines() {
  FakeDevice& device = make_device();
  FakeStream stream;
  device.is_lost = true;
  // If nothing could be enqueued on the stream: on the caller, before the call returns.
  std::string caught;
  [](FakeDevice& lost, FakeStream& on, std::string& text) -> detached_task {
    try {
      co_await on_stream(lost, on);
    } catch (const StreamError&) {
      text = Pool::is_pool_thread() ? "on the pool" : "on the caller";
    }
  }(device, stream, caught);
  CHECK(caught == "on the caller");
}

void the_deadline_is_kept_even_if_a_query_of_the_device_hangs() {
  FakeDevice& device = make_device();
  FakeStream stream;
  std::atomic<bool> may_end{false};
  stream.put([&] {
    while (!may_end) sleep_for(milliseconds(1));
  });
  device.hangs_when_asked = true;
  const auto begin = steady_clock::now();
  CHECK_THROWS(wait_for(on_stream(device, stream, milliseconds(80))),
               StreamDeadlineError);
  const auto waited = steady_clock::now() - begin;
  CHECK(waited >= milliseconds(80) && waited < std::chrono::seconds(5));
  // The host call runs late, finds no wait, and has no effect.
  device.hangs_when_asked = false;
  may_end = true;
  wait_for(on_stream(device, stream));
}

void a_wait_may_end_before_its_host_call_is_on_the_stream() {
  FakeDevice& device = make_device();
  FakeStream stream;
  for (int i = 0; i < 200; ++i) {
    try {
      wait_for(on_stream(device, stream, std::chrono::nanoseconds(1)));
    } catch (const StreamDeadlineError&) {
      continue;  // the usual case
    }
  }
  CHECK(num_stream_waits() == 0);
}

detached_task await_often(const FakeDevice& device, FakeStream& stream, int times,
                          std::atomic<int>& on_pool, std::latch& ended) {
  for (int i = 0; i < times; ++i) {
    co_await on_stream(device, stream);
    on_pool += Pool::is_pool_thread();
  }
  ended.count_down();
}

void many_waits_run_concurrently() {
  FakeDevice& device = make_device();
  FakeStream one;
  FakeStream two;
  std::atomic<int> on_pool{0};
  std::latch ended(3);
  await_often(device, one, 1000, on_pool, ended);
  await_often(device, two, 1000, on_pool, ended);
  await_often(device, one, 1000, on_pool, ended);
  ended.wait();
  CHECK(on_pool == 3000);
  CHECK(num_stream_waits() == 0);
}

// The thread of host calls continues to run, like a driver's thread.
void a_forked_child_after_a_wait_has_all_threads() {
  FakeDevice& device = make_device();
  FakeStream stream;
  for (int i = 0; i < 3; ++i) {
    wait_for(on_stream(device, stream));
    const pid_t pid = fork();
    if (pid == 0) _exit(Pool::process().num_threads());
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
  }
}

void a_wait_continues_after_a_fork() {
  FakeDevice& device = make_device();
  FakeStream stream;
  std::atomic<bool> may_end{false};
  stream.put([&] {
    while (!may_end) sleep_for(milliseconds(1));
  });
  std::latch ended(1);
  await_one(device, stream, ended);
  const pid_t pid = fork();
  if (pid == 0) _exit(static_cast<int>(num_stream_waits()));
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  may_end = true;
  ended.wait();
}

void streams_of_another_version_are_rejected() {
  SparringStreams streams = make_device().streams();
  check_streams(streams);
  streams.version.major = 2;
  CHECK_THROWS(check_streams(streams), std::invalid_argument);
}

}  // namespace
}  // namespace sparring::execution

int main() {
  using namespace sparring::execution;
  Pool::process().configure(3);
  return sparring::testing::run({
      {"it resumes on the pool when the stream has reached the position",
       it_resumes_on_the_pool_when_the_stream_has_reached_the_position},
      {"work that is enqueued later is not waited for",
       work_that_is_enqueued_later_is_not_waited_for},
      {"coroutines await streams in turn", coroutines_await_streams_in_turn},
      {"several streams are awaited at once", several_streams_are_awaited_at_once},
      {"a lost device is an error, not a hang", a_lost_device_is_an_error_not_a_hang},
      {"errors are thrown into coroutines", errors_are_thrown_into_coroutines},
      {"the deadline is kept even if a query of the device hangs",
       the_deadline_is_kept_even_if_a_query_of_the_device_hangs},
      {"a wait may end before its host call is on the stream",
       a_wait_may_end_before_its_host_call_is_on_the_stream},
      {"many waits run concurrently", many_waits_run_concurrently},
      {"a forked child after a wait has all threads", a_forked_child_after_a_wait_has_all_threads},
      {"a wait continues after a fork", a_wait_continues_after_a_fork},
      {"streams of another version are rejected", streams_of_another_version_are_rejected},
  });
}
