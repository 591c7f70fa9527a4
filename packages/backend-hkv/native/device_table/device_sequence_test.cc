// Compares random sequences of calls with a host model that processes one key after
// another, under several schedules of the emulator, and with the CPU table if nothing is
// evicted. SPARRING_OPERATIONS sets the length of a sequence.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <string>

#include "check.h"
#include "device_client.h"
#include "device_model.h"
#include "emulator.h"

namespace {

using namespace sparring::hkv;
using namespace sparring::hkv::testing;

uint64_t num_operations() {
  const char* asked = std::getenv("SPARRING_OPERATIONS");
  return asked == nullptr ? 1000 : std::stoull(asked);
}

// A table, its model and the CPU table, which all get the same calls.
class Sequence {
 public:
  Sequence(const DeviceTableOptions& options, uint64_t num_keys, uint64_t seed)
      : options_(options.table),
        num_keys_(num_keys),
        random_(seed),
        device_(options),
        model_(options.table),
        cpu_(options.table) {
    sparring::device::emulator::set_schedule({seed, static_cast<unsigned>(1 + seed % 3)});
  }

  void run(uint64_t num_calls) {
    for (uint64_t i = 0; i < num_calls; ++i) {
      // Host arrays in odd calls; arrays declared as device arrays in even ones.
      device_.set_device(i % 2 == 0 ? kGpu : SparringDevice{1, 0});
      one_call(i);
      if (i % 97 == 0) check_all();
    }
    check_all();
  }

 private:
  bool evicts() const { return make_device_layout(options_).evicts; }
  uint64_t draw(uint64_t end) { return random_() % end; }

  Keys draw_keys(uint64_t most) {
    std::set<int64_t> keys;
    const uint64_t count = draw(std::min(most, num_keys_ / 2) + 1);
    while (keys.size() < count) {
      const uint64_t kind = draw(20);
      keys.insert(kind == 0   ? INT64_MIN
                  : kind == 1 ? INT64_MAX
                  : kind == 2 ? -1
                              : static_cast<int64_t>(draw(num_keys_)) * 0x1234567 - 1000);
    }
    Keys shuffled(keys.begin(), keys.end());
    std::shuffle(shuffled.begin(), shuffled.end(), random_);
    return shuffled;
  }

  void one_call(uint64_t version) {
    const uint64_t kind = draw(100);
    if (kind < 35) return find(draw_keys(60));
    if (kind < 75) return upsert(draw_keys(draw(8) == 0 ? num_keys_ / 2 : 50), version);
    if (kind < 87) return erase(draw_keys(40));
    if (kind < 93) return touch(draw_keys(40));
    if (kind < 96) return evict();
    if (kind < 98) return next_epoch();
    if (draw(40) == 0) clear();
  }

  Scores draw_scores(size_t count) {
    Scores scores;
    for (size_t i = 0; i < count; ++i) scores.push_back(draw(50));
    return scores;
  }

  void find(const Keys& keys) {
    const std::vector<Bytes> found = device_.find(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto held = model_.rows().find(keys[i]);
      CHECK(found[i] == (held == model_.rows().end() ? Bytes() : held->second.row));
    }
  }

  void upsert(const Keys& keys, uint64_t version) {
    const Scores drawn = draw_scores(keys.size());
    const bool gives = model_.policy().takes_scores() && draw(3) != 0;
    const Scores* scores = gives ? &drawn : nullptr;
    DeviceModel::Evicted left;
    const SparringStatus status =
        device_.upsert(keys, version, scores, draw(4) == 0 ? nullptr : &left);
    if (!model_.fits(keys)) {
      CHECK(status == SPARRING_CAPACITY);
      return;
    }
    CHECK(status == SPARRING_OK);
    const bool asked = !left.empty();
    const DeviceModel::Evicted expected = model_.upsert(keys, version, scores);
    if (asked) CHECK(left == expected);
    if (!evicts()) CHECK(cpu_.upsert(keys, version, scores) == SPARRING_OK);
  }

  void erase(const Keys& keys) {
    const int64_t erased = model_.erase(keys);
    CHECK(device_.erase(keys) == erased);
    if (!evicts()) CHECK(cpu_.erase(keys) == erased);
  }

  void touch(const Keys& keys) {
    if (!model_.policy().keeps_scores()) return;
    const Scores drawn = draw_scores(keys.size());
    const Scores* scores = model_.policy().takes_scores() && draw(2) == 0 ? &drawn : nullptr;
    CHECK(device_.touch(keys, scores) == SPARRING_OK);
    model_.touch(keys, scores);
    if (!evicts()) CHECK(cpu_.touch(keys, scores) == SPARRING_OK);
  }

  void evict() {
    if (!model_.policy().keeps_scores()) return;
    const auto wanted = static_cast<int64_t>(draw(30));
    const DeviceModel::Evicted expected = model_.evict(wanted);
    CHECK(device_.evict(wanted) == expected);
    if (!evicts()) CHECK(cpu_.evict(wanted) == expected);
  }

  void next_epoch() {
    if (!model_.policy().has_epochs()) return;
    const std::string epoch = std::to_string(model_.policy().epoch() + 1);
    model_.policy().set_epoch(model_.policy().epoch() + 1);
    CHECK(device_.set_option("epoch", epoch.c_str()) == SPARRING_OK);
    CHECK(cpu_.set_option("epoch", epoch.c_str()) == SPARRING_OK);
  }

  void clear() {
    device_.clear();
    model_.clear();
    cpu_.clear();
  }

  void check_all() {
    CHECK(device_.scan(static_cast<int64_t>(1 + draw(300))) == model_.rows());
    CHECK(device_.stat().size == static_cast<int64_t>(model_.rows().size()));
    if (!evicts()) CHECK(cpu_.scan() == model_.rows());
  }

  TableOptions options_;
  uint64_t num_keys_;
  std::mt19937_64 random_;
  DeviceClient device_;
  DeviceModel model_;
  Client cpu_;
};

void run_all_seeds(const DeviceTableOptions& options, uint64_t num_keys) {
  for (uint64_t seed = 0; seed < 4; ++seed) Sequence(options, num_keys, seed).run(num_operations() / 4);
}

void growing_tables() { run_all_seeds(device_options(20), 3000); }
void growing_tables_of_wide_rows() { run_all_seeds(device_options(64), 1000); }
void growing_tables_with_scores() { run_all_seeds(device_options(6, -1, PolicyKind::kLfu), 1500); }
void growing_tables_with_a_capacity() { run_all_seeds(device_options(16, 300), 600); }
void chaining_tables_within_memory() {
  DeviceTableOptions options = device_options(12);
  options.table.memory_bytes = 40000;
  run_all_seeds(options, 1500);
}
void evicting_tables() {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kEpochLru,
                                  PolicyKind::kEpochLfu, PolicyKind::kCustom}) {
    run_all_seeds(device_options(16, 400, policy), 1000);
  }
}
void tiny_evicting_tables() {
  run_all_seeds(device_options(8, 1, PolicyKind::kCustom), 50);
  run_all_seeds(device_options(8, 130, PolicyKind::kLru), 300);
}
void tables_whose_rows_spill() {
  DeviceTableOptions options = device_options(256);
  options.device_memory_bytes = 200000;
  run_all_seeds(options, 2000);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"growing tables equal the model and the CPU table", growing_tables},
      {"the same with wide rows", growing_tables_of_wide_rows},
      {"the same with scores", growing_tables_with_scores},
      {"the same with a capacity", growing_tables_with_a_capacity},
      {"the same with chains and a memory limit", chaining_tables_within_memory},
      {"the same with rows in host memory", tables_whose_rows_spill},
      {"evicting tables and their evicted rows equal the model", evicting_tables},
      {"the same with tiny tables", tiny_evicting_tables},
  });
}
