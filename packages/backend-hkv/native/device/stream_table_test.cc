#include "stream_table.h"

#include <cstring>
#include <string>
#include <thread>

#include "check.h"
#include "emulated_device.h"

using namespace sparring::device;

namespace {

SparringStreamCall make_call() {
  SparringStreamCall call{};
  call.struct_bytes = sizeof call;
  return call;
}

void the_functions_of_the_table_control_the_device() {
  const auto device = std::make_shared<EmulatedDevice>();
  const SparringStreams& streams = *streams_of(device);
  CHECK(&streams == streams_of(device) && std::string(streams.device) == "emulated");
  CHECK(streams.struct_bytes == sizeof(SparringStreams) && streams.version.major == 1);
  SparringStreamCall call = make_call();
  CHECK(streams.make_stream(streams.self, &call) == SPARRING_OK && call.stream != nullptr);
  CHECK(streams.make_event(streams.self, &call) == SPARRING_OK && call.event != nullptr);
  CHECK(streams.record_event(streams.self, &call) == SPARRING_OK);
  CHECK(streams.order_after(streams.self, &call) == SPARRING_OK);
  CHECK(streams.query_event(streams.self, &call) == SPARRING_OK && call.is_done == 1);
  int num_calls = 0;
  call.function = [](void* count) { ++*static_cast<int*>(count); };
  call.argument = &num_calls;
  CHECK(streams.call_on_host(streams.self, &call) == SPARRING_OK && num_calls == 1);

  call.num_bytes = 100;
  CHECK(streams.allocate_pinned(streams.self, &call) == SPARRING_OK);
  void* const pinned = call.to;
  Buffer memory(*device, 100, call.stream);
  std::memset(pinned, 7, 100);
  call.to = memory.as<void>();
  call.from = pinned;
  CHECK(streams.copy(streams.self, &call) == SPARRING_OK);
  CHECK(std::memcmp(memory.as<char>(), pinned, 100) == 0);
  call.to = pinned;
  CHECK(streams.free_pinned(streams.self, &call) == SPARRING_OK);
  CHECK(streams.free_event(streams.self, &call) == SPARRING_OK);
  CHECK(streams.free_stream(streams.self, &call) == SPARRING_OK);
}

void host_calls_run_on_one_thread_that_keeps_running() {
  const auto device = std::make_shared<EmulatedDevice>();
  const SparringStreams& streams = *streams_of(device);
  SparringStreamCall call = make_call();
  std::thread::id seen[2];
  for (std::thread::id& each : seen) {
    call.function = [](void* id) {
      *static_cast<std::thread::id*>(id) = std::this_thread::get_id();
    };
    call.argument = &each;
    CHECK(streams.call_on_host(streams.self, &call) == SPARRING_OK);
  }
  CHECK(seen[0] == seen[1] && seen[0] != std::this_thread::get_id());
}

void a_failed_device_returns_its_message() {
  const auto device = std::make_shared<EmulatedDevice>();
  const SparringStreams& streams = *streams_of(device);
  SparringStreamCall call = make_call();
  CHECK(streams.make_event(streams.self, &call) == SPARRING_OK);
  device->break_down("fell off the bus");
  int num_calls = 0;
  call.function = [](void* count) { ++*static_cast<int*>(count); };
  call.argument = &num_calls;
  const int64_t from = 1;
  int64_t to = 0;
  call.from = &from;
  call.to = &to;
  call.num_bytes = sizeof(to);
  for (const SparringStreamFunction function :
       {streams.record_event, streams.query_event, streams.call_on_host, streams.copy}) {
    CHECK(function(streams.self, &call) == SPARRING_DEVICE_LOST);
    CHECK(std::string(call.error.message) == "fell off the bus");
    call.error.release(&call.error);
    call.error = {};
  }
  CHECK(num_calls == 0 && to == 0);
  CHECK(streams.free_event(streams.self, &call) == SPARRING_OK);
}

void a_rejected_call_is_not_a_lost_device() {
  const auto device = std::make_shared<EmulatedDevice>();
  const SparringStreams& streams = *streams_of(device);
  const int64_t from = 1;
  int64_t to = 0;
  SparringStreamCall call = make_call();
  call.from = &from;
  call.to = &to;
  call.num_bytes = sizeof(to);
  device->refuse_once(0);
  CHECK(streams.copy(streams.self, &call) == SPARRING_DEVICE_FAILED && to == 0);
  call.error.release(&call.error);
  call.error = {};
  CHECK(streams.copy(streams.self, &call) == SPARRING_OK && to == 1);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"the functions of the table control the device", the_functions_of_the_table_control_the_device},
      {"host calls run on one thread that keeps running",
       host_calls_run_on_one_thread_that_keeps_running},
      {"a failed device returns its message", a_failed_device_returns_its_message},
      {"a rejected call is not a lost device", a_rejected_call_is_not_a_lost_device},
  });
}
