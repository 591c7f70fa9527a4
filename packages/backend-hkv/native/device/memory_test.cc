#include "memory.h"

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "algorithms.h"
#include "check.h"
#include "emulated_device.h"

using namespace sparring::device;

namespace {

void fresh_memory_is_poisoned() {
  EmulatedDevice device;
  const Buffer buffer(device, 100, nullptr);
  CHECK(buffer.as<unsigned char>()[0] == EmulatedDevice::poison);
  CHECK(buffer.as<unsigned char>()[99] == EmulatedDevice::poison);
  CHECK(reinterpret_cast<uintptr_t>(buffer.as<void>()) % 256 == 0);
}

void out_of_memory_reports_the_requested_and_the_free_bytes() {
  EmulatedDevice device(1000);
  const Buffer held(device, 600, nullptr);
  try {
    device.allocate(500, nullptr);
    CHECK(false);
  } catch (const OutOfDeviceMemory& error) {
    CHECK(error.asked_bytes == 500 && error.free_bytes == 400);
  }
  const Buffer fits(device, 400, nullptr);
  CHECK(device.memory().free_bytes == 0 && device.memory().total_bytes == 1000);
}

void the_nth_allocation_fails() {
  EmulatedDevice device;
  device.fail_from(1);
  { const Buffer first(device, 1, nullptr); }
  for (int i = 0; i < 2; ++i) {
    try {
      device.allocate(1, nullptr);
      CHECK(false);
    } catch (const OutOfDeviceMemory&) {
    }
  }
  device.fail_from(-1);
  const Buffer again(device, 1, nullptr);
}

void an_allocation_without_free_memory_calls_the_reclaimer_once() {
  EmulatedDevice device(1000);
  auto held = std::make_unique<Buffer>(device, 600, nullptr);
  int num_asked = 0;
  device.set_reclaimer([&] {
    ++num_asked;
    held.reset();
    return true;
  });
  const Buffer fits(device, 400, nullptr);
  CHECK(num_asked == 0);
  const Buffer more(device, 500, nullptr);  // kept memory is released for it
  CHECK(num_asked == 1);
  for (const bool has_given : {true, false}) {
    device.set_reclaimer([&, has_given] {
      ++num_asked;
      return has_given;
    });
    try {
      device.allocate(500, nullptr);
      CHECK(false);
    } catch (const OutOfDeviceMemory& error) {
      CHECK(error.asked_bytes == 500 && error.free_bytes == 100);
    }
  }
  CHECK(num_asked == 3);
  device.set_reclaimer({});
  try {
    device.allocate(500, nullptr);
    CHECK(false);
  } catch (const OutOfDeviceMemory&) {
    CHECK(num_asked == 3);
  }
}

void a_failed_device_rejects_everything() {
  EmulatedDevice device;
  char byte = 0;
  device.break_down("lost");
  int num_refused = 0;
  const auto refused = [&](auto call) {
    try {
      call();
    } catch (const DeviceError&) {
      ++num_refused;
    }
  };
  refused([&] { device.allocate(1, nullptr); });
  refused([&] { device.allocate_pinned(1); });
  refused([&] { device.copy(&byte, &byte, 1, nullptr); });
  refused([&] { device.fill(&byte, 1, 1, nullptr); });
  refused([&] { device.wait(nullptr); });
  refused([&] { device.check(); });
  CHECK(num_refused == 6 && byte == 0);
}

void waits_are_counted() {
  EmulatedDevice device;
  const Stream stream = device.make_stream();
  const Event event = device.make_event();
  device.record(event, stream);
  device.order_after(event, stream);
  CHECK(device.num_waits() == 0);
  device.wait(stream);
  device.wait_event(event);
  CHECK(device.num_waits() == 2);
  device.free_event(event);
  device.free_stream(stream);
}

void captures_stay_valid_while_another_thread_uses_the_device() {
  EmulatedDevice device;
  const Stream stream = device.make_stream();
  const Stream captured = device.make_stream();
  const Event event = device.make_event();
  device.record(event, stream);
  EmulatedDevice::streams.begin_capture(captured);
  std::thread([&] {
    CHECK(device.is_done(event));
    device.wait_event(event);
    device.wait(stream);
    device.free_pinned(device.allocate_pinned(8), 8);
    CHECK(EmulatedStreams::capture_mode == 0);
  }).join();
  CHECK(EmulatedDevice::streams.end_capture(captured));
  EmulatedDevice::streams.begin_capture(captured);
  CHECK_THROWS(EmulatedDevice::streams.use_unsafely(), DeviceError);
  CHECK(!EmulatedDevice::streams.end_capture(captured));
  device.free_event(event);
  device.free_stream(stream);
  device.free_stream(captured);
}

void sorts_stably_by_the_selected_bits() {
  EmulatedDevice device;
  const std::vector<uint64_t> keys = {0x31, 0x12, 0x33, 0x11, 0x24, 0x15};
  std::vector<uint32_t> values(keys.size());
  std::iota(values.begin(), values.end(), 0u);
  std::vector<uint64_t> sorted_keys(keys.size());
  std::vector<uint32_t> sorted_values(keys.size());
  sort_pairs(device, nullptr, keys.data(), values.data(), sorted_keys.data(), sorted_values.data(),
             keys.size(), {4, 6});
  CHECK((sorted_values == std::vector<uint32_t>{1, 3, 5, 4, 0, 2}));
  CHECK((sorted_keys == std::vector<uint64_t>{0x12, 0x11, 0x15, 0x24, 0x31, 0x33}));
  sort_pairs(device, nullptr, keys.data(), values.data(), sorted_keys.data(), sorted_values.data(),
             keys.size(), {0, 64});
  CHECK((sorted_values == std::vector<uint32_t>{3, 1, 5, 4, 0, 2}));
}

void sums_and_selects() {
  EmulatedDevice device;
  std::vector<uint32_t> values = {3, 1, 4, 1, 5};
  exclusive_sum(device, nullptr, values.data(), values.data(), values.size());
  CHECK((values == std::vector<uint32_t>{0, 3, 4, 8, 9}));
  const std::vector<uint8_t> flags = {1, 0, 0, 1, 1};
  std::vector<uint32_t> selected(5);
  uint32_t num_selected = 9;
  select_flagged(device, nullptr, values.data(), flags.data(), selected.data(), &num_selected, 5);
  CHECK(num_selected == 3 && selected[0] == 0 && selected[1] == 8 && selected[2] == 9);
  select_flagged(device, nullptr, values.data(), flags.data(), selected.data(), &num_selected, 0);
  CHECK(num_selected == 0);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"fresh memory is poisoned", fresh_memory_is_poisoned},
      {"out of memory reports the requested and the free bytes",
       out_of_memory_reports_the_requested_and_the_free_bytes},
      {"the nth allocation fails", the_nth_allocation_fails},
      {"an allocation without free memory calls the reclaimer once",
       an_allocation_without_free_memory_calls_the_reclaimer_once},
      {"a failed device rejects everything", a_failed_device_rejects_everything},
      {"waits are counted", waits_are_counted},
      {"captures stay valid while another thread uses the device",
       captures_stay_valid_while_another_thread_uses_the_device},
      {"sorts stably by the selected bits", sorts_stably_by_the_selected_bits},
      {"sums and selects", sums_and_selects},
  });
}
