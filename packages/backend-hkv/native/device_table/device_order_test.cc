// The emulator does all work at once, so this test records what streams wait for.
#include "device_order.h"

#include <map>
#include <set>

#include "check.h"
#include "emulated_device.h"

namespace {

using namespace sparring;
using namespace sparring::hkv;

// Records the work that each stream is ordered after: its own, and work ordered by events.
class RecordingDevice : public device::EmulatedDevice {
 public:
  void work(device::Stream stream, int number) { done_[stream].insert(number); }
  // Destroyed with unfinished work; the next stream with this address is ordered after nothing.
  void forget(device::Stream stream) { done_.erase(stream); }
  bool comes_after(device::Stream stream, int number) { return done_[stream].contains(number); }

  void record(device::Event event, device::Stream stream) override { events_[event] = done_[stream]; }
  void order_after(device::Event event, device::Stream stream) override {
    done_[stream].insert(events_[event].begin(), events_[event].end());
  }

 private:
  std::map<device::Stream, std::set<int>> done_;
  std::map<device::Event, std::set<int>> events_;
};

struct Streams {
  RecordingDevice device;
  device::Stream a = device.make_stream();
  device::Stream b = device.make_stream();
  device::Stream c = device.make_stream();
  DeviceOrder order{device};

  ~Streams() {
    for (device::Stream stream : {a, b, c}) device.free_stream(stream);
  }
  void read(device::Stream stream, int number) {
    order.begin_read(stream);
    device.work(stream, number);
    order.end_read(stream);
  }
  void write(device::Stream stream, int number) {
    order.begin_write(stream);
    device.work(stream, number);
    order.end_write(stream);
  }
};

void a_read_runs_after_the_last_write_of_another_stream() {
  Streams streams;
  streams.write(streams.a, 1);
  streams.read(streams.b, 2);
  CHECK(streams.device.comes_after(streams.b, 1));
}

void a_write_runs_after_all_reads_of_other_streams() {
  Streams streams;
  streams.read(streams.a, 1);
  streams.read(streams.b, 2);
  streams.write(streams.c, 3);
  CHECK(streams.device.comes_after(streams.c, 1) && streams.device.comes_after(streams.c, 2));
  streams.write(streams.a, 4);
  CHECK(streams.device.comes_after(streams.a, 2) && streams.device.comes_after(streams.a, 3));
}

void a_write_runs_after_reads_of_a_stream_whose_address_was_reused() {
  Streams streams;
  streams.read(streams.a, 1);
  streams.device.forget(streams.a);
  streams.read(streams.a, 2);
  streams.write(streams.b, 3);
  CHECK(streams.device.comes_after(streams.b, 1) && streams.device.comes_after(streams.b, 2));
}

void reads_wait_for_no_reads() {
  Streams streams;
  streams.read(streams.a, 1);
  streams.read(streams.b, 2);
  CHECK(!streams.device.comes_after(streams.b, 1));
}

void a_detour_runs_in_between() {
  Streams streams;
  streams.device.work(streams.a, 1);
  {
    const Detour detour(streams.order, streams.a, streams.b);
    CHECK(streams.device.comes_after(streams.b, 1));
    streams.device.work(streams.b, 2);
    CHECK(!streams.device.comes_after(streams.a, 2));
  }
  CHECK(streams.device.comes_after(streams.a, 2));
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"a read runs after the last write of another stream",
       a_read_runs_after_the_last_write_of_another_stream},
      {"a write runs after all reads of other streams",
       a_write_runs_after_all_reads_of_other_streams},
      {"a write runs after reads of a stream whose address was reused",
       a_write_runs_after_reads_of_a_stream_whose_address_was_reused},
      {"reads wait for no reads", reads_wait_for_no_reads},
      {"a detour runs in between", a_detour_runs_in_between},
  });
}
