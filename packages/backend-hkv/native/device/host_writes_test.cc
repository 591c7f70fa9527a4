#include "host_writes.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "check.h"
#include "emulated_device.h"

using namespace sparring::device;

namespace {

std::vector<char> numbered(size_t num_bytes, char first) {
  std::vector<char> bytes(num_bytes);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

bool holds(Device& device, const Buffer& buffer, const std::vector<char>& expected, Stream stream) {
  std::vector<char> found(expected.size());
  device.copy(found.data(), buffer.as<void>(), found.size(), stream);
  device.wait(stream);
  return found == expected;
}

// The emulator always shows this effect; a GPU may or may not.
void a_plain_copy_reads_its_source_late() {
  const auto device = EmulatedDevice::make_late(1);
  const Stream stream = device->make_stream();
  const Buffer to(*device, 100, stream);
  std::vector<char> from = numbered(100, 3);
  device->copy(to.as<void>(), from.data(), from.size(), stream);
  std::fill(from.begin(), from.end(), char{50});
  CHECK(holds(*device, to, from, stream));
  device->free_stream(stream);
}

void sources_are_read_before_the_call_returns() {
  for (const size_t num_bytes : {size_t{1}, size_t{4097}, 5 * HostWrites::kMostPieceBytes / 2}) {
    const auto device = EmulatedDevice::make_late(num_bytes);
    const Stream stream = device->make_stream();
    {
      const Buffer to(*device, num_bytes, stream);
      const std::vector<char> expected = numbered(num_bytes, 3);
      std::vector<char> from = expected;
      device->write(to.as<void>(), from.data(), num_bytes, stream);
      std::fill(from.begin(), from.end(), char{0});
      CHECK(holds(*device, to, expected, stream));
    }
    device->free_stream(stream);
  }
}

void buffers_are_reused_and_limited() {
  EmulatedDevice device;
  Buffer to(device, 64, nullptr);
  const std::vector<char> from = numbered(64, 1);
  device.write(to.as<void>(), from.data(), 64, nullptr);
  const uint64_t pieces = device.num_lasting_allocations();
  for (int i = 0; i < 100; ++i) device.write(to.as<void>(), from.data(), 64, nullptr);
  CHECK(device.num_lasting_allocations() == pieces && device.num_waits() == 0);
  // No work on a late stream is done by itself: beyond 16 MiB, the oldest buffer is waited for.
  const auto late = EmulatedDevice::make_late(7);
  const Stream stream = late->make_stream();
  const size_t num_bytes = 2 * HostWrites::kMostBytes;
  {
    const Buffer large(*late, num_bytes, stream);
    const std::vector<char> bytes = numbered(num_bytes, 9);
    late->write(large.as<void>(), bytes.data(), num_bytes, stream);
    CHECK(holds(*late, large, bytes, stream));
  }
  late->free_stream(stream);
}

void without_pinned_memory_it_waits() {
  EmulatedDevice device;
  Buffer to(device, 64, nullptr);
  const std::vector<char> from = numbered(64, 1);
  device.fail_from(0);
  device.write(to.as<void>(), from.data(), 64, nullptr);
  device.fail_from(-1);
  CHECK(device.num_waits() == 1);
  CHECK(holds(device, to, from, nullptr));
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"a plain copy reads its source late", a_plain_copy_reads_its_source_late},
      {"sources are read before the call returns", sources_are_read_before_the_call_returns},
      {"buffers are reused and limited", buffers_are_reused_and_limited},
      {"without pinned memory it waits", without_pinned_memory_it_waits},
  });
}
