// Streams of a device and the pool.
#include "execution/on_stream.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "execution/execution.h"
#include "testing/check.h"
#include "testing/fake_streams.h"

namespace sparring::execution {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::FakeDevice;
using testing::FakeStream;

void sleep_for(milliseconds time) { std::this_thread::sleep_for(time); }

// Devices live as long as the process.
FakeDevice& make_device() {
  static auto* const devices = new std::deque<FakeDevice>;
  return devices->emplace_back();
}

void it_resumes_on_the_pool_when_the_stream_has_come_there() {
  FakeDevice& device = make_device();
  FakeStream stream;
  std::atomic<int> done{0};
  stream.put([&] {
    sleep_for(milliseconds(30));
    done = 1;
  });
  const auto all = sync_wait(on_stream(device.streams(), &stream) | then([&] {
                               return std::to_string(done) +
                                      (Pool::is_pool_thread() ? " pool" : " elsewhere") +
                                      (FakeDevice::is_device_thread ? " device" : "");
                             }));
  CHECK(all == std::tuple<std::string>("1 pool"));
  for (int i = 0; i < 10000 && device.num_events != 0; ++i) sleep_for(milliseconds(1));
  CHECK(device.num_events == 0);
}

void what_is_put_on_the_stream_later_is_not_waited_for() {
  FakeDevice& device = make_device();
  FakeStream stream;
  std::atomic<bool> may_end{false};
  auto waited = on_stream(device.streams(), &stream);
  CHECK(sync_wait(std::move(waited) | then([&] {
                    stream.put([&] {
                      while (!may_end) sleep_for(milliseconds(1));
                    });
                    return 1;
                  })) == std::tuple<int>(1));
  may_end = true;
}

task<std::string> hop_over(const FakeDevice& device, FakeStream& find, FakeStream& wire) {
  std::string order;
  for (int hop = 0; hop < 100; ++hop) {
    find.put([&order] { order += 'f'; });
    co_await on_stream(device.streams(), &find);
    if (!Pool::is_pool_thread() || FakeDevice::is_device_thread) co_return "not on the pool";
    wire.put([&order] { order += 'w'; });
    co_await schedule(stream_scheduler(device.streams(), &wire));
  }
  co_return order;
}

void coroutines_await_streams_in_turn() {
  FakeDevice& device = make_device();
  FakeStream find;
  FakeStream wire;
  std::string expected;
  for (int hop = 0; hop < 100; ++hop) expected += "fw";
  CHECK(sync_wait(hop_over(device, find, wire)) == std::tuple<std::string>(expected));
}

void several_streams_are_awaited_at_once() {
  FakeDevice& device = make_device();
  FakeStream first;
  FakeStream second;
  std::atomic<int> sum{0};
  // Each waits for the other to have begun: one after the other, they would never end.
  std::atomic<int> begun{0};
  for (FakeStream* each : {&first, &second}) {
    each->put([&] {
      for (++begun; begun != 2;) std::this_thread::yield();
      ++sum;
    });
  }
  CHECK(sync_wait(when_all(on_stream(device.streams(), &first),
                           on_stream(device.streams(), &second)) |
                  then([&] { return sum.load(); })) == std::tuple<int>(2));
  CHECK(stream_scheduler(device.streams(), &first) == stream_scheduler(device.streams(), &first));
  CHECK(stream_scheduler(device.streams(), &first) != stream_scheduler(device.streams(), &second));
}

void a_lost_device_is_an_error_not_a_hang() {
  FakeDevice& device = make_device();
  FakeStream stream;
  // Lost before: nothing can be put on the stream.
  device.is_lost = true;
  CHECK_THROWS(sync_wait(on_stream(device.streams(), &stream)), StreamLostError);
  // Lost meanwhile: no host call comes, and only polling the event finds out.
  device.is_lost = false;
  device.swallows_host_calls = true;
  std::thread loses([&] {
    sleep_for(milliseconds(20));
    device.is_lost = true;
  });
  const auto begin = steady_clock::now();
  try {
    sync_wait(on_stream(device.streams(), &stream));
    CHECK(false);
  } catch (const StreamLostError& error) {
    CHECK(std::string(error.what()).find("fake:0: what was on a stream failed: the device was "
                                         "lost") == 0);
  }
  CHECK(steady_clock::now() - begin < std::chrono::seconds(5));
  loses.join();
  CHECK(num_stream_waits() == 0);
}

task<std::string> catch_loss(const FakeDevice& device, FakeStream& stream) {
  try {
    co_await on_stream(device.streams(), &stream);
  } catch (const StreamError&) {
    co_return Pool::is_pool_thread() ? "caught on the pool" : "caught";
  }
  co_return "not thrown";
}

void errors_are_thrown_into_coroutines() {
  FakeDevice& device = make_device();
  FakeStream stream;
  device.is_lost = true;
  CHECK(sync_wait(catch_loss(device, stream)) == std::tuple<std::string>("caught"));
}

void the_deadline_holds_even_where_the_device_hangs_when_asked() {
  FakeDevice& device = make_device();
  FakeStream stream;
  std::atomic<bool> may_end{false};
  stream.put([&] {
    while (!may_end) sleep_for(milliseconds(1));
  });
  device.hangs_when_asked = true;
  const auto begin = steady_clock::now();
  CHECK_THROWS(sync_wait(on_stream(device.streams(), &stream, milliseconds(80))),
               StreamDeadlineError);
  const auto waited = steady_clock::now() - begin;
  CHECK(waited >= milliseconds(80) && waited < std::chrono::seconds(5));
  // The host call comes late, finds no wait, and does no harm.
  device.hangs_when_asked = false;
  may_end = true;
  CHECK(sync_wait(on_stream(device.streams(), &stream) | then([] { return 1; })) ==
        std::tuple<int>(1));
}

task<int> await_often(const FakeDevice& device, FakeStream& stream, int times) {
  int num_on_pool = 0;
  for (int i = 0; i < times; ++i) {
    co_await on_stream(device.streams(), &stream);
    num_on_pool += Pool::is_pool_thread();
  }
  co_return num_on_pool;
}

void many_waits_run_side_by_side() {
  FakeDevice& device = make_device();
  FakeStream one;
  FakeStream two;
  CHECK(sync_wait(when_all(await_often(device, one, 1000), await_often(device, two, 1000),
                           await_often(device, one, 1000))) ==
        (std::tuple<int, int, int>(1000, 1000, 1000)));
  CHECK(num_stream_waits() == 0);
}

void streams_of_another_version_are_refused() {
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
      {"it resumes on the pool when the stream has come there",
       it_resumes_on_the_pool_when_the_stream_has_come_there},
      {"what is put on the stream later is not waited for",
       what_is_put_on_the_stream_later_is_not_waited_for},
      {"coroutines await streams in turn", coroutines_await_streams_in_turn},
      {"several streams are awaited at once", several_streams_are_awaited_at_once},
      {"a lost device is an error, not a hang", a_lost_device_is_an_error_not_a_hang},
      {"errors are thrown into coroutines", errors_are_thrown_into_coroutines},
      {"the deadline holds even where the device hangs when asked",
       the_deadline_holds_even_where_the_device_hangs_when_asked},
      {"many waits run side by side", many_waits_run_side_by_side},
      {"streams of another version are refused", streams_of_another_version_are_refused},
  });
}
