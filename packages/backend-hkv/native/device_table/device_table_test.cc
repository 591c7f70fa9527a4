// Tests promises of the device table that random sequences do not cover.
#include "device_table.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "check.h"
#include "colliding_keys.h"
#include "device_client.h"
#include "device_model.h"
#include "emulator.h"

namespace {

using namespace sparring::hkv;
using namespace sparring::hkv::testing;
using sparring::device::emulator::kIsSlow;
using Evicted = std::vector<std::pair<int64_t, Held>>;

Keys range(int64_t begin, int64_t end) {
  Keys keys(static_cast<size_t>(end - begin));
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

uint64_t waits_of(DeviceClient& client, const std::function<void()>& call) {
  const uint64_t before = client.device().num_waits();
  call();
  return client.device().num_waits() - before;
}

void calls_wait_only_as_documented_in_the_header() {
  DeviceClient growing(device_options(16));
  growing.set_device(kGpu);
  CHECK(growing.upsert(range(0, 600), 1) == SPARRING_OK);
  CHECK(waits_of(growing, [&] { growing.find(range(0, 100)); }) == 0);
  CHECK(waits_of(growing, [&] { growing.upsert(range(0, 100), 2); }) <= 1);
  CHECK(waits_of(growing, [&] { growing.upsert(range(600, 700), 2); }) <= 2);
  CHECK(waits_of(growing, [&] { growing.erase(range(0, 10)); }) == 1);

  DeviceClient evicting(device_options(16, 200, PolicyKind::kLru));
  evicting.set_device(kGpu);
  CHECK(waits_of(evicting, [&] { evicting.upsert(range(0, 400), 1); }) == 0);
  CHECK(waits_of(evicting, [&] { evicting.touch(range(0, 100)); }) == 0);
  Evicted left;
  CHECK(waits_of(evicting, [&] { evicting.upsert(range(390, 400), 1, nullptr, &left); }) <= 1);
  CHECK(waits_of(evicting, [&] { evicting.upsert(range(400, 500), 1, nullptr, &left); }) == 2);
}

void tables_with_allocated_memory_do_not_wait_to_insert() {
  DeviceTableOptions options = device_options(16);
  DeviceClient client(options);
  client.set_device(kGpu);
  // Heads for 12,288 rows; rows and overflow buckets are also allocated in advance.
  CHECK(client.upsert(range(0, 10000), 1) == SPARRING_OK);
  client.stat();
  CHECK(waits_of(client, [&] { client.upsert(range(10000, 10010), 1); }) == 0);
  CHECK(client.stat().size == 10010);
}

// Makes the n-th allocation of a call fail, for each n until the call succeeds.
void every_failing_allocation_leaves_the_table(const DeviceTableOptions& options,
                                               const std::function<SparringStatus(DeviceClient&)>& call) {
  DeviceClient client(options);
  CHECK(client.upsert(range(0, 90), 1) == SPARRING_OK);
  const Rows before = client.scan();
  for (const bool is_staged : {false, true}) {
    int64_t num_failed = 0;
    for (;; num_failed += kIsSlow ? 7 : 1) {
      CHECK(num_failed < 100);
      client.set_device(is_staged ? SparringDevice{1, 0} : kGpu);
      client.device().fail_from(num_failed);
      const SparringStatus status = call(client);
      client.device().fail_from(-1);
      client.set_device({1, 0});
      if (status == SPARRING_OK) break;
      CHECK(status == SPARRING_DEVICE_MEMORY);
      CHECK(client.message().find("bytes of device memory were asked for") != std::string::npos);
      CHECK(client.message().find("the table is unchanged") != std::string::npos);
      CHECK(client.scan() == before);
      CHECK(client.stat().size == static_cast<int64_t>(before.size()));
    }
    CHECK(num_failed > 0);
    if (is_staged) return;
    client.clear();
    CHECK(client.upsert(range(0, 90), 1) == SPARRING_OK);
    if (options.table.policy != PolicyKind::kNone) return;  // scores differ after failed calls
  }
}

SparringStatus upsert_many(DeviceClient& client) {
  Evicted left;
  return client.upsert(range(50, 700), 2, nullptr, &left);
}

SparringStatus erase_some(DeviceClient& client) {
  const Keys keys = range(0, 20);
  auto arguments = client.arguments<SparringErase>();
  arguments.count = 20;
  arguments.keys = keys.data();
  return client.call(client.get()->erase, arguments);
}

SparringStatus evict_some(DeviceClient& client) {
  Evicted left;
  Sink sink{client.row_bytes(), &left};
  auto arguments = client.arguments<SparringEvict>();
  arguments.wanted = 10;
  arguments.sink = {&Sink::receive, &sink};
  return client.call(client.get()->evict, arguments);
}

// Writes make_row(key, 9) to new rows, and increments each byte of existing ones.
struct Change {
  const Keys* keys;
  uint64_t row_bytes;
  Keys refused;
  std::vector<int64_t> seen;

  static int32_t admit(void* context, int64_t count, const int64_t* positions, uint8_t* is_admitted) {
    auto& self = *static_cast<Change*>(context);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t key = (*self.keys)[static_cast<size_t>(positions[i])];
      CHECK(i == 0 || positions[i] > positions[i - 1]);
      is_admitted[i] = std::count(self.refused.begin(), self.refused.end(), key) == 0;
    }
    return 0;
  }
  static void change(void* context, int64_t count, const int64_t* positions, void* const* rows,
                     const uint8_t* is_new) {
    auto& self = *static_cast<Change*>(context);
    for (int64_t i = 0; i < count; ++i) {
      self.seen.push_back(positions[i]);
      const int64_t key = (*self.keys)[static_cast<size_t>(positions[i])];
      char* const row = static_cast<char*>(rows[i]);
      if (is_new[i] != 0) {
        const Bytes made = make_row(key, 9, self.row_bytes);
        std::memcpy(row, made.data(), made.size());
      } else {
        for (uint64_t byte = 0; byte < self.row_bytes; ++byte) row[byte] = static_cast<char>(row[byte] + 1);
      }
    }
  }
};

template <class AnyClient>
SparringStatus update(AnyClient& client, Change& change, Evicted* left, int64_t* inserted) {
  auto arguments = client.template arguments<SparringUpdate>();
  arguments.count = static_cast<int64_t>(change.keys->size());
  arguments.keys = change.keys->data();
  arguments.admit = change.refused.empty() ? nullptr : &Change::admit;
  arguments.change = &Change::change;
  arguments.context = &change;
  Sink sink{client.row_bytes(), left};
  if (left != nullptr) arguments.evicted = {&Sink::receive, &sink};
  const SparringStatus status = client.call(client.get()->update, arguments);
  *inserted = arguments.inserted;
  return status;
}

SparringStatus update_many(DeviceClient& client) {
  const Keys keys = range(50, 400);
  Change change{&keys, client.row_bytes(), {60, 350}, {}};
  Evicted left;
  int64_t inserted = 0;
  return update(client, change, &left, &inserted);
}

void out_of_memory_changes_nothing() {
  DeviceTableOptions chained = device_options(16);
  chained.table.memory_bytes = 60000;
  const DeviceTableOptions evicting = device_options(16, 200, PolicyKind::kLru);
  for (const DeviceTableOptions& options : {device_options(16), chained, evicting}) {
    every_failing_allocation_leaves_the_table(options, upsert_many);
    every_failing_allocation_leaves_the_table(options, update_many);
    every_failing_allocation_leaves_the_table(options, erase_some);
  }
  every_failing_allocation_leaves_the_table(evicting, evict_some);
  every_failing_allocation_leaves_the_table(device_options(16, -1, PolicyKind::kLru), evict_some);
}

void a_table_that_does_not_fit_is_rejected_with_the_free_bytes() {
  try {
    DeviceClient client(device_options(1000, 10000, PolicyKind::kLru), 1 << 20);
    CHECK(false);
  } catch (const sparring::device::OutOfDeviceMemory& error) {
    CHECK(error.asked_bytes > error.free_bytes);
  }
}

void a_failed_device_is_rejected_permanently() {
  DeviceClient client(device_options(16));
  CHECK(client.upsert(range(0, 10), 1) == SPARRING_OK);
  client.device().break_down("the GPU is lost");
  CHECK(client.upsert(range(10, 20), 1) == SPARRING_DEVICE_LOST);
  CHECK(client.message().find("the GPU is lost") != std::string::npos);
  client.device().break_down("");
  CHECK(client.upsert(range(10, 20), 1) == SPARRING_DEVICE_LOST);
  CHECK(client.message().find("rejects all calls since") != std::string::npos);
}

// The device rejects the n-th operation of a call, for each n. Before the table changes, that is an
// error of this call only; after that, the table rejects everything.
void a_refused_call_leaves_the_table(const DeviceTableOptions& options,
                                     const std::function<SparringStatus(DeviceClient&)>& call) {
  int num_unchanged = 0;
  for (int64_t n = 0;; n += kIsSlow ? 17 : 1) {
    CHECK(n < 200);
    DeviceClient client(options);
    CHECK(client.upsert(range(0, 90), 1) == SPARRING_OK);
    const Rows before = client.scan();
    client.set_device(kGpu);
    client.device().refuse_once(n);
    const SparringStatus status = call(client);
    client.device().refuse_once(-1);
    client.set_device({1, 0});
    if (status == SPARRING_OK) break;
    if (status == SPARRING_DEVICE_FAILED) {
      ++num_unchanged;
      CHECK(client.message().find("was refused") != std::string::npos);
      CHECK(client.scan() == before);
      client.set_device(kGpu);
      CHECK(call(client) == SPARRING_OK);
    } else {
      CHECK(status == SPARRING_DEVICE_LOST);
      CHECK(client.upsert(range(0, 1), 1) == SPARRING_DEVICE_LOST);
    }
  }
  CHECK(num_unchanged > (kIsSlow ? 0 : 1));
}

void rejections_of_one_call_do_not_change_the_table() {
  const DeviceTableOptions evicting = device_options(16, 200, PolicyKind::kLru);
  for (const DeviceTableOptions& options : {device_options(16), evicting}) {
    a_refused_call_leaves_the_table(options, upsert_many);
    a_refused_call_leaves_the_table(options, update_many);
    a_refused_call_leaves_the_table(options, erase_some);
  }
}

// A reader that fails halfway has nevertheless enqueued work on its stream.
void a_find_that_fails_is_followed_by_writers() {
  DeviceClient client(device_options(16));
  CHECK(client.upsert(range(0, 10), 1) == SPARRING_OK);
  client.set_device(kGpu);
  const uint64_t before = client.device().num_records();
  client.device().refuse_once(0);
  const Keys keys = range(0, 10);
  std::vector<char> rows(10 * 16);
  std::vector<uint8_t> found(10);
  auto arguments = client.arguments<SparringFind>();
  arguments.count = 10;
  arguments.keys = keys.data();
  arguments.columns = {0, 16};
  arguments.rows = rows.data();
  arguments.row_stride = 16;
  arguments.found = found.data();
  CHECK(client.call(client.get()->find, arguments) == SPARRING_DEVICE_FAILED);
  CHECK(client.device().num_records() == before + 1);
}

void pinned_memory_is_freed_when_nothing_uses_it() {
  DeviceTableOptions options = device_options(1024);
  options.device_memory_bytes = 100000;
  auto device = std::make_shared<sparring::device::EmulatedDevice>();
  {
    DeviceStorage storage(device, kGpu, options);
    const Keys keys = range(0, 500);
    const std::vector<char> rows(500 * 1024);
    SparringUpsert call{};
    call.call.device = kGpu;
    call.count = 500;
    call.keys = keys.data();
    call.rows = rows.data();
    call.row_stride = 1024;
    for (const bool clears : {true, false}) {
      storage.upsert(call);
      CHECK(storage.table().pinned_bytes() > 0);
      if (clears) storage.clear();
      CHECK(device->num_early_frees() == 0);
    }
  }
  CHECK(device->num_early_frees() == 0);
}

void lists_that_grow_contain_no_uninitialized_memory() {
  DeviceTableOptions options = device_options(16);
  DeviceClient client(options);
  const Keys hostile = colliding_keys(3000, 40);
  for (int64_t size = 500; size <= (kIsSlow ? 3000 : 6000); size += kIsSlow ? 2500 : 500) {
    CHECK(client.upsert(range(0, size), 1) == SPARRING_OK);
    CHECK(client.upsert(Keys(hostile.begin(), hostile.begin() + size / 2), 1) == SPARRING_OK);
    client.erase(range(size / 2, size / 2 + 20));
  }
  CHECK(client.device().num_unwritten_copies() == 0);
}

void arrays_of_another_device_are_rejected() {
  DeviceClient client(device_options(16));
  client.set_device({2, 1});
  CHECK(client.upsert(range(0, 10), 1) == SPARRING_INVALID_ARGUMENT);
  CHECK(client.message().find("(type 2, id 0)") != std::string::npos);
  CHECK(client.message().find("(type 2, id 1)") != std::string::npos);
}

void rows_beyond_the_budget_are_in_pinned_memory() {
  DeviceTableOptions options = device_options(1024);
  options.device_memory_bytes = 100000;
  DeviceClient client(options);
  CHECK(client.upsert(range(0, 30), 1) == SPARRING_OK);
  CHECK(client.table().pinned_bytes() == 0);
  CHECK(client.upsert(range(0, 500), 1) == SPARRING_OK);
  CHECK(client.table().pinned_bytes() > 400 * 1024);
  CHECK(client.device().memory().total_bytes - client.device().memory().free_bytes < 130000);
  const std::vector<Bytes> rows = client.find(range(0, 500));
  for (int64_t key = 0; key < 500; ++key) {
    CHECK(rows[static_cast<size_t>(key)] == make_row(key, 1, 1024));
  }
}

void updates_equal_those_of_the_cpu() {
  for (const bool on_device : {true, false}) {
    DeviceClient device(device_options(20, -1, PolicyKind::kLfu));
    Client cpu(device_options(20, -1, PolicyKind::kLfu).table);
    for (const auto& [begin, end] : {std::pair{0, 300}, {100, 500}, {100, 500}}) {
      const Keys keys = range(begin, end);
      Change change{&keys, 20, {7, 333, 499}, {}};
      Change expected{&keys, 20, {7, 333, 499}, {}};
      int64_t inserted = 0;
      int64_t expected_inserted = 0;
      if (on_device) device.set_device(kGpu);
      CHECK(update(device, change, nullptr, &inserted) == SPARRING_OK);
      CHECK(update(cpu, expected, nullptr, &expected_inserted) == SPARRING_OK);
      CHECK(inserted == expected_inserted);
      std::sort(change.seen.begin(), change.seen.end());
      std::sort(expected.seen.begin(), expected.seen.end());
      CHECK(change.seen == expected.seen);
      device.set_device({1, 0});
      CHECK(device.scan() == cpu.scan());
    }
  }
}

void updates_that_evict_equal_find_change_and_upsert() {
  for (const bool hands_over : {true, false}) {
    const DeviceTableOptions options = device_options(20, 200, PolicyKind::kLfu);
    DeviceClient direct(options);
    DeviceClient staged(options);
    for (const auto& [begin, end] : {std::pair{0, 150}, {100, 450}, {0, 600}, {590, 610}}) {
      const Keys keys = range(begin, end);
      Change change{&keys, 20, {7, 333, 499}, {}};
      Change expected{&keys, 20, {7, 333, 499}, {}};
      Evicted left;
      Evicted expected_left;
      int64_t inserted = 0;
      int64_t expected_inserted = 0;
      direct.set_device(kGpu);
      CHECK(update(direct, change, hands_over ? &left : nullptr, &inserted) == SPARRING_OK);
      CHECK(update(staged, expected, hands_over ? &expected_left : nullptr, &expected_inserted) ==
            SPARRING_OK);
      CHECK(inserted == expected_inserted);
      CHECK(left == expected_left);
      direct.set_device({1, 0});
      CHECK(direct.scan() == staged.scan());
    }
  }
}

void visits_show_rows_in_place() {
  DeviceClient client(device_options(20));
  CHECK(client.upsert(range(0, 50), 1) == SPARRING_OK);
  const Keys keys = {3, 3, 100, -1, 49};
  for (const SparringDevice& place : {kGpu, SparringDevice{1, 0}}) {
    client.set_device(place);
    auto arguments = client.arguments<SparringVisit>();
    arguments.count = 5;
    arguments.keys = keys.data();
    arguments.columns = {4, 12};
    std::vector<Bytes> shown;
    arguments.context = &shown;
    arguments.show = [](void* context, int64_t, int64_t count, const void* const* rows) {
      for (int64_t i = 0; i < count; ++i) {
        const char* row = static_cast<const char*>(rows[i]);
        static_cast<std::vector<Bytes>*>(context)->push_back(row == nullptr ? Bytes() : Bytes(row, row + 8));
      }
      return 0;
    };
    CHECK(client.call(client.get()->visit, arguments) == SPARRING_OK);
    CHECK(shown.size() == 5 && shown[2].empty() && shown[3].empty());
    for (const size_t i : {size_t{0}, size_t{1}, size_t{4}}) {
      const Bytes row = make_row(keys[i], 1, 20);
      CHECK(shown[i] == Bytes(row.begin() + 4, row.begin() + 12));
    }
  }
}

void colliding_keys_form_chains_and_are_separated_later() {
  DeviceClient client(device_options(16));
  const Keys hostile = colliding_keys(1000, 40);
  CHECK(client.upsert(hostile, 1) == SPARRING_OK);
  CHECK(client.upsert(range(0, 3000), 1) == SPARRING_OK);  // heads split before the chain
  CHECK(client.stat().size == 4000);
  CHECK(client.stat().memory_bytes < 1 << 20);
  CHECK(client.scan(7).size() == 4000);
  CHECK(client.erase(Keys(hostile.begin(), hostile.begin() + 900)) == 900);
  CHECK(client.erase(hostile) == 100);
  CHECK(client.upsert(hostile, 2) == SPARRING_OK);
  for (const Bytes& row : client.find(hostile)) CHECK(!row.empty());
}

void repeated_keys_do_not_break_the_table() {
  // The row of a repeated key is written twice by any two blocks. One thread, because it is a race.
  namespace emulator = sparring::device::emulator;
  const emulator::Schedule before = emulator::schedule();
  emulator::set_schedule({before.seed, 1});
  for (const DeviceTableOptions& options :
       {device_options(16), device_options(16, 300, PolicyKind::kLru)}) {
    DeviceClient client(options);
    Keys keys = range(0, 100);
    keys.insert(keys.end(), keys.begin(), keys.begin() + 60);
    CHECK(client.upsert(keys, 1) == SPARRING_OK);
    CHECK(client.stat().size == 100);
    CHECK(client.scan().size() == 100);
    CHECK(client.erase(keys) == 100);
    CHECK(client.stat().size == 0);
    CHECK(client.upsert(keys, 1) == SPARRING_OK);
    CHECK(client.scan().size() == 100);
  }
  emulator::set_schedule(before);
}

void memory_grows_and_shrinks_with_the_rows() {
  const int64_t num_rows = kIsSlow ? 2000 : 20000;
  DeviceClient client(device_options(64));
  CHECK(client.upsert(range(0, 10), 1) == SPARRING_OK);
  const uint64_t small = client.stat().memory_bytes;
  CHECK(small < 40000);
  CHECK(client.upsert(range(0, num_rows), 1) == SPARRING_OK);
  CHECK(client.stat().memory_bytes < static_cast<uint64_t>(num_rows) * (64 + 40) * 2);
  client.clear();
  CHECK(client.stat().memory_bytes < small);

  DeviceTableOptions bounded = device_options(64, -1, PolicyKind::kLru);
  bounded.table.memory_bytes = num_rows * 50;
  DeviceClient evicting(bounded);
  CHECK(evicting.upsert(range(0, num_rows), 1) == SPARRING_OK);
  CHECK(evicting.stat().memory_bytes <= static_cast<uint64_t>(num_rows) * 50);
  CHECK(evicting.stat().memory_bytes > static_cast<uint64_t>(num_rows) * 45);
}

void bytes_are_counted_by_purpose() {
  DeviceTableOptions options = device_options(64);
  options.device_memory_bytes = 200000;
  DeviceClient client(options);
  for (int64_t size : {10, 1000, 5000}) {
    CHECK(client.upsert(range(0, size), 1) == SPARRING_OK);
    client.erase(range(0, 7));
    const sparring::device::MemoryUse use = client.device().memory_use();
    CHECK(use.temporary_bytes == 0);
    CHECK(use.lasting_bytes + client.table().pinned_bytes() == client.stat().memory_bytes);
  }
  CHECK(client.table().pinned_bytes() > 0);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"calls wait only as documented in the header", calls_wait_only_as_documented_in_the_header},
      {"tables with allocated memory do not wait to insert",
       tables_with_allocated_memory_do_not_wait_to_insert},
      {"out of memory changes nothing", out_of_memory_changes_nothing},
      {"a table that does not fit is rejected with the free bytes",
       a_table_that_does_not_fit_is_rejected_with_the_free_bytes},
      {"a failed device is rejected permanently", a_failed_device_is_rejected_permanently},
      {"rejections of one call do not change the table", rejections_of_one_call_do_not_change_the_table},
      {"a find that fails is followed by writers", a_find_that_fails_is_followed_by_writers},
      {"pinned memory is freed when nothing uses it", pinned_memory_is_freed_when_nothing_uses_it},
      {"lists that grow contain no uninitialized memory", lists_that_grow_contain_no_uninitialized_memory},
      {"arrays of another device are rejected", arrays_of_another_device_are_rejected},
      {"rows beyond the budget are in pinned memory", rows_beyond_the_budget_are_in_pinned_memory},
      {"updates equal those of the CPU", updates_equal_those_of_the_cpu},
      {"updates that evict equal find, change and upsert",
       updates_that_evict_equal_find_change_and_upsert},
      {"visits show rows in place", visits_show_rows_in_place},
      {"colliding keys form chains and are separated later",
       colliding_keys_form_chains_and_are_separated_later},
      {"repeated keys do not break the table", repeated_keys_do_not_break_the_table},
      {"memory grows and shrinks with the rows", memory_grows_and_shrinks_with_the_rows},
      {"bytes are counted by purpose", bytes_are_counted_by_purpose},
  });
}
