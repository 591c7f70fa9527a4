#include "read_back.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "check.h"
#include "emulated_device.h"

using namespace sparring::device;

namespace {

// Device bytes that differ from their neighbors.
struct Source {
  Source(Device& device, size_t count) : expected(count), memory(device, count, nullptr) {
    for (size_t i = 0; i < count; ++i) expected[i] = static_cast<char>(i * 31 + i / 251);
    device.copy(memory.as<void>(), expected.data(), count, nullptr);
  }
  std::vector<char> expected;
  Buffer memory;
};

void data_of_any_length_are_copied_completely() {
  const auto device = std::make_shared<EmulatedDevice>();
  ReadBack read_back(device, 100);
  for (const size_t first : {0, 1, 99, 100, 101, 250, 1000}) {
    for (const size_t second : {0, 1, 100, 333}) {
      const Source one(*device, first);
      const Source two(*device, second);
      std::vector<char> found_one(first);
      std::vector<char> found_two(second);
      read_back.read({{found_one.data(), one.memory.as<void>(), first},
                      {found_two.data(), two.memory.as<void>(), second}},
                     nullptr);
      CHECK(found_one == one.expected && found_two == two.expected);
    }
  }
}

void short_spans_share_one_wait_and_long_ones_need_no_more_memory() {
  const auto device = std::make_shared<EmulatedDevice>();
  ReadBack read_back(device, 100);
  const Source source(*device, 1000);
  std::vector<char> found(1000);
  char* const from = source.memory.as<char>();
  read_back.read({{found.data(), from, 40}, {found.data() + 40, from + 40, 50}}, nullptr);
  CHECK(device->num_waits() == 1);
  const uint64_t before = device->num_lasting_allocations();
  read_back.read({{found.data(), from, 1000}}, nullptr);
  CHECK(device->num_waits() == 1 + 10 && found == source.expected);
  CHECK(device->num_lasting_allocations() == before);
}

void without_pinned_memory_it_copies_directly() {
  const auto device = std::make_shared<EmulatedDevice>();
  ReadBack read_back(device, 100);
  const Source source(*device, 1000);
  std::vector<char> found(1000);
  for (const int64_t allocation : {0, 1}) {
    device->fail_from(allocation);
    std::memset(found.data(), 0, found.size());
    read_back.read({{found.data(), source.memory.as<void>(), 1000}}, nullptr);
    CHECK(found == source.expected);
  }
  device->fail_from(-1);
}

void after_any_rejected_operation_the_next_read_is_complete() {
  const auto device = std::make_shared<EmulatedDevice>();
  ReadBack read_back(device, 100);
  const Source source(*device, 350);
  std::vector<char> found(350);
  int64_t num_refused = 0;
  for (bool was_refused = true; was_refused; num_refused += was_refused) {
    device->refuse_once(num_refused);
    was_refused = false;
    try {
      read_back.read({{found.data(), source.memory.as<void>(), 350}}, nullptr);
    } catch (const DeviceError&) {
      was_refused = true;
    }
    device->refuse_once(-1);
    std::memset(found.data(), 0, found.size());
    read_back.read({{found.data(), source.memory.as<void>(), 350}}, nullptr);
    CHECK(found == source.expected);
  }
  CHECK(num_refused > 4);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"data of any length are copied completely", data_of_any_length_are_copied_completely},
      {"short spans share one wait, and long ones need no more memory",
       short_spans_share_one_wait_and_long_ones_need_no_more_memory},
      {"without pinned memory it copies directly", without_pinned_memory_it_copies_directly},
      {"after any rejected operation the next read is complete",
       after_any_rejected_operation_the_next_read_is_complete},
  });
}
