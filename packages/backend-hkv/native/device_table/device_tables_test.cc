// Compares several tables in one call, on a device whose streams are late, with the same tables one
// after another on a device where all work is done at once.
#include "device_tables.h"

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "device/emulated_device.h"
#include "device/emulator.h"
#include "device/launch.h"
#include "sparring/storage_border.h"

namespace {

using namespace sparring::hkv;
namespace device = sparring::device;
using device::emulator::kIsSlow;

constexpr uint64_t kRowBytes = 8;
constexpr size_t kNumTables = 4;
using Keys = std::vector<int64_t>;

// New rows get the key; existing ones are incremented.
struct Count {
  static constexpr unsigned block_threads = 64;
  static constexpr bool is_batched = true;
  const int64_t* keys;
  const int64_t* positions;
  void* const* rows;
  const uint8_t* is_new;
  uint64_t count;
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      auto* const row = static_cast<int64_t*>(rows[i]);
      *row = is_new[i] != 0 ? keys[positions[i]] : *row + 1;
    }
  }
};

struct Show {
  static constexpr unsigned block_threads = 64;
  static constexpr bool is_batched = true;
  const void* const* rows;
  int64_t* out;
  uint64_t count;
  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads())
      out[i] = rows[i] == nullptr ? -1 : *static_cast<const int64_t*>(rows[i]);
  }
};

class Tables {
 public:
  Tables(std::unique_ptr<device::EmulatedDevice> machine, const DeviceTableOptions& options)
      : machine_(std::move(machine)), read_back_(std::make_unique<device::ReadBack>(machine_)) {
    for (size_t i = 0; i < kNumTables; ++i)
      tables_.push_back(std::make_unique<DeviceTable>(*machine_, options));
    for (auto& each : streams_) each = machine_->make_stream();
  }
  ~Tables() {
    tables_.clear();
    read_back_.reset();
    for (auto& each : streams_) machine_->free_stream(each);
  }

  bool update(const std::vector<Keys>& keys, int stream, bool together, uint64_t num_bad = 0) {
    std::vector<Call<SparringUpdate>> calls = calls_of<SparringUpdate>(keys, stream);
    const device::Buffer bad(*machine_, 8, streams_[stream]);
    machine_->write(bad.as<void>(), &num_bad, 8, streams_[stream]);
    std::vector<TableUpdate> updates;
    for (size_t i = 0; i < kNumTables; ++i) {
      calls[i].arguments.change = [](void* context, int64_t count, const int64_t* positions,
                                     void* const* rows, const uint8_t* is_new) {
        const auto& call = *static_cast<Call<SparringUpdate>*>(context);
        device::launch(*call.device, {2}, call.arguments.call.stream,
                       Count{call.arguments.keys, positions, rows, is_new,
                             static_cast<uint64_t>(count)});
      };
      updates.push_back({tables_[i].get(), &calls[i].arguments});
    }
    size_t num_done = 0;
    if (together) return update_all(*read_back_, updates, bad.as<uint64_t>(), &num_done);
    for (const TableUpdate& each : updates) each.table->update(*each.call);
    return true;
  }

  std::vector<int64_t> visit(const std::vector<Keys>& keys, int stream, bool together) {
    std::vector<Call<SparringVisit>> calls = calls_of<SparringVisit>(keys, stream);
    std::vector<TableVisit> visits;
    for (size_t i = 0; i < kNumTables; ++i) {
      calls[i].out = device::make_buffer<int64_t>(*machine_, keys[i].size(), streams_[stream]);
      calls[i].arguments.columns = {0, kRowBytes};
      calls[i].arguments.show = [](void* context, int64_t, int64_t count, const void* const* rows) {
        const auto& call = *static_cast<Call<SparringVisit>*>(context);
        device::launch(*call.device, {1}, call.arguments.call.stream,
                       Show{rows, call.out.template as<int64_t>(), static_cast<uint64_t>(count)});
        return int32_t{0};
      };
      visits.push_back({tables_[i].get(), &calls[i].arguments});
    }
    if (together) {
      visit_all(visits);
    } else {
      for (const TableVisit& each : visits) each.table->visit(*each.call);
    }
    std::vector<int64_t> all;
    for (size_t i = 0; i < kNumTables; ++i) {
      std::vector<int64_t> own(keys[i].size());
      machine_->copy(own.data(), calls[i].out.template as<void>(), own.size() * 8, streams_[stream]);
      machine_->wait(streams_[stream]);
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

  device::EmulatedDevice& machine() { return *machine_; }

 private:
  template <class Arguments>
  struct Call {
    device::Device* device;
    device::Buffer keys;
    device::Buffer out;
    Arguments arguments{};
  };
  template <class Arguments>
  std::vector<Call<Arguments>> calls_of(const std::vector<Keys>& keys, int stream) {
    std::vector<Call<Arguments>> calls(kNumTables);
    for (size_t i = 0; i < kNumTables; ++i) {
      Call<Arguments>& call = calls[i];
      call.device = machine_.get();
      call.keys = device::make_buffer<int64_t>(*machine_, keys[i].size(), streams_[stream]);
      machine_->write(call.keys.template as<void>(), keys[i].data(), keys[i].size() * 8,
                      streams_[stream]);
      call.arguments.call.struct_bytes = sizeof(Arguments);
      call.arguments.call.stream = streams_[stream];
      call.arguments.count = static_cast<int64_t>(keys[i].size());
      call.arguments.keys = call.keys.template as<int64_t>();
      call.arguments.context = &call;
    }
    return calls;
  }

  std::shared_ptr<device::EmulatedDevice> machine_;
  std::unique_ptr<device::ReadBack> read_back_;
  std::vector<std::unique_ptr<DeviceTable>> tables_;
  device::Stream streams_[2];
};

std::vector<Keys> draw(std::mt19937_64& random, uint64_t most) {
  std::vector<Keys> all;
  for (size_t i = 0; i < kNumTables; ++i) {
    std::set<int64_t> keys;
    const uint64_t count = random() % most;
    while (keys.size() < count) keys.insert(static_cast<int64_t>(random() % 3000));
    all.emplace_back(keys.begin(), keys.end());
    std::shuffle(all.back().begin(), all.back().end(), random);
  }
  return all;
}

void run(const DeviceTableOptions& options) {
  for (uint64_t seed = 0; seed < (kIsSlow ? 1 : 4); ++seed) {
    device::emulator::set_schedule({seed, 2});
    std::mt19937_64 random(seed);
    Tables together(device::EmulatedDevice::make_late(seed), options);
    Tables alone(std::make_unique<device::EmulatedDevice>(), options);
    for (int round = 0; round < (kIsSlow ? 4 : 25); ++round) {
      const std::vector<Keys> keys = draw(random, round == 0 ? 800 : 60);
      const int stream = static_cast<int>(random() % 2);
      CHECK(!together.update(keys, stream, true, 3));
      CHECK(together.update(keys, stream, true));
      alone.update(keys, 0, false);
      const std::vector<Keys> asked = draw(random, 400);
      const int other = static_cast<int>(random() % 2);
      CHECK(together.visit(asked, other, true) == alone.visit(asked, 0, false));
    }
  }
  device::emulator::set_schedule({});
}

DeviceTableOptions options_of(int64_t capacity, PolicyKind policy) {
  DeviceTableOptions options;
  options.table.row_bytes = kRowBytes;
  options.table.capacity = capacity;
  options.table.policy = policy;
  return options;
}

void growing_tables_equal_separate_calls() { run(options_of(-1, PolicyKind::kNone)); }
void evicting_tables_equal_separate_calls() { run(options_of(600, PolicyKind::kLru)); }

void no_table_is_partially_changed_by_a_failed_call() {
  int num_lost = 0;
  for (int64_t call = 0; call < 60; call += kIsSlow ? 5 : 1) {
    Tables tables(std::make_unique<device::EmulatedDevice>(), options_of(-1, PolicyKind::kNone));
    std::mt19937_64 random(7);
    const std::vector<Keys> keys = draw(random, 50);
    tables.update(keys, 0, true);
    tables.machine().refuse_once(call);
    bool has_thrown = false;
    try {
      tables.update(keys, 0, true);
    } catch (const std::exception&) {
      has_thrown = true;
    }
    tables.machine().refuse_once(-1);
    if (!has_thrown) continue;
    // The first tables are changed and the others not; tables in an intermediate state reject later
    // calls.
    try {
      const std::vector<int64_t> found = tables.visit(keys, 0, true);
      size_t at = 0;
      int64_t before = 1;
      for (const Keys& own : keys) {
        if (own.empty()) continue;
        const int64_t change = found[at] - own.front();
        CHECK(change == 0 || (change == 1 && before == 1));
        for (const int64_t key : own) CHECK(found[at++] == key + change);
        before = change;
      }
    } catch (const sparring::border::StatusError& error) {
      CHECK(error.status() == SPARRING_DEVICE_LOST);
      ++num_lost;
    }
  }
  CHECK(num_lost > 0);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"growing tables equal separate calls", growing_tables_equal_separate_calls},
      {"evicting tables equal separate calls", evicting_tables_equal_separate_calls},
      {"no table is partially changed by a failed call",
       no_table_is_partially_changed_by_a_failed_call},
  });
}
