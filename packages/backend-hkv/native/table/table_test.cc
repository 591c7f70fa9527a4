// Compares the whole table, through the C ABI, with plain maps.
#include "table.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "client.h"
#include "colliding_keys.h"
#include "thread_executor.h"

using namespace sparring::hkv;
using namespace sparring::hkv::testing;

namespace {

const Keys kExtremes = {0, -1, -2, -3, 1, INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1};

Keys distinct(std::mt19937_64& random, const Keys& from, size_t count) {
  Keys keys;
  std::sample(from.begin(), from.end(), std::back_inserter(keys), count, random);
  std::shuffle(keys.begin(), keys.end(), random);
  return keys;
}

// Random calls, each followed by a comparison; nothing is evicted.
void run_machine(const TableOptions& options, const Keys& keys, const SparringExecutor* executor,
                 int steps) {
  std::mt19937_64 random(6);
  Client client(options, executor);
  std::unordered_map<int64_t, uint64_t> versions;
  for (int step = 1; step <= steps; ++step) {
    const auto version = static_cast<uint64_t>(step);
    const Keys chosen = distinct(random, keys, random() % (keys.size() / 2));
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
      case 3:
        CHECK(client.upsert(chosen, version) == SPARRING_OK);
        for (const int64_t key : chosen) versions[key] = version;
        break;
      case 4:
      case 5: {
        int64_t erased = 0;
        for (const int64_t key : chosen) erased += static_cast<int64_t>(versions.erase(key));
        CHECK(client.erase(chosen) == erased);
        break;
      }
      case 6: {
        const Rows rows = client.scan(1 + static_cast<int64_t>(random() % 5000));
        CHECK(rows.size() == versions.size());
        for (const auto& [key, held] : rows) {
          CHECK(held.row == make_row(key, versions.at(key), options.row_bytes));
        }
        break;
      }
      default:
        if (step % 64 == 7) {
          client.clear();
          versions.clear();
        }
    }
    const Keys asked = distinct(random, keys, keys.size() / 3);
    const std::vector<Bytes> found = client.find(asked);
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto known = versions.find(asked[i]);
      CHECK(found[i] == (known == versions.end()
                             ? Bytes()
                             : make_row(asked[i], known->second, options.row_bytes)));
    }
    CHECK(client.stat().size == static_cast<int64_t>(versions.size()));
  }
}

void growing_table_agrees_with_a_map() {
  Keys keys = kExtremes;
  for (int64_t key = 100; key < 4000; ++key) keys.push_back(key * key);
  sparring::testing::ThreadExecutor executor(3);
  run_machine({.row_bytes = 20}, keys, nullptr, 80);
  run_machine({.row_bytes = 1}, keys, executor.get(), 80);
  run_machine({.row_bytes = 8, .policy = PolicyKind::kLfu}, keys, executor.get(), 50);
  run_machine({.row_bytes = 8, .memory_bytes = 500'000}, keys, executor.get(), 50);
}

void colliding_keys_are_only_slower() {
  Keys keys = colliding_keys(3000, 40);
  keys.insert(keys.end(), kExtremes.begin(), kExtremes.end());
  run_machine({.row_bytes = 12}, keys, nullptr, 40);
  run_machine({.row_bytes = 12, .capacity = 5000}, keys, nullptr, 40);
  run_machine({.row_bytes = 12, .memory_bytes = 200'000}, keys, nullptr, 40);
}

void a_full_table_without_policy_rejects_rows_and_is_unchanged() {
  for (const TableOptions& options :
       {TableOptions{.row_bytes = 16, .capacity = 500},
        TableOptions{.row_bytes = 16, .memory_bytes = 40'000}}) {
    Client client(options);
    const int64_t capacity = client.stat().capacity;
    Keys keys;
    for (int64_t key = 0; key < capacity; ++key) keys.push_back(key);
    CHECK(client.upsert(Keys(keys.begin(), keys.end() - 3), 1) == SPARRING_OK);
    const Rows before = client.scan();
    // Known keys, and four new ones where only three fit.
    Keys mixed(keys.begin(), keys.begin() + 10);
    for (int64_t key = 9001; key <= 9004; ++key) mixed.push_back(key);
    CHECK(client.upsert(mixed, 2) == SPARRING_CAPACITY);
    CHECK(client.message().find("4 of them new") != std::string::npos);
    CHECK(client.scan() == before);
    mixed.pop_back();
    CHECK(client.upsert(mixed, 2) == SPARRING_OK);
    CHECK(client.stat().size == capacity);
    CHECK(client.upsert({9999}, 2) == SPARRING_CAPACITY);
    CHECK(client.erase({9001}) == 1 && client.upsert({9999}, 2) == SPARRING_OK);
  }
}

// For each policy: the capacity is never exceeded, and each key that was ever
// inserted is either in the table or was passed to the sink exactly once since
// then, with its row and score.
void evicting_table_loses_nothing() {
  for (const PolicyKind policy :
       {PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kEpochLru, PolicyKind::kEpochLfu,
        PolicyKind::kCustom}) {
    for (const int64_t capacity : {1, 2, 59, 60, 61, 1500}) {
      std::mt19937_64 random(7);
      Client client({.row_bytes = 12, .capacity = capacity, .policy = policy});
      std::unordered_map<int64_t, uint64_t> versions;
      Keys universe = kExtremes;
      for (int64_t key = 10; key < 3 * capacity; ++key) universe.push_back(key * 11);
      for (uint64_t step = 1; step <= 30; ++step) {
        const Keys keys = distinct(random, universe, 1 + random() % universe.size());
        Scores scores;
        for (size_t i = 0; i < keys.size(); ++i) scores.push_back(random() % 20);
        const bool has_scores = policy == PolicyKind::kCustom && random() % 4 != 0;
        std::vector<std::pair<int64_t, Held>> evicted;
        CHECK(client.upsert(keys, step, has_scores ? &scores : nullptr, &evicted) == SPARRING_OK);
        for (const int64_t key : keys) versions[key] = step;
        for (const auto& [key, held] : evicted) {
          CHECK(versions.count(key) == 1 && held.row == make_row(key, versions[key], 12));
          versions.erase(key);
        }
        const Rows after = client.scan();
        CHECK(after.size() == versions.size());
        for (const auto& [key, held] : after) CHECK(held.row == make_row(key, versions.at(key), 12));
        CHECK(client.stat().size == static_cast<int64_t>(after.size()));
        CHECK(static_cast<int64_t>(after.size()) <= capacity);
        if (random() % 5 == 0) {
          for (const int64_t key : distinct(random, universe, universe.size() / 4)) {
            client.erase({key});
            versions.erase(key);
          }
        }
        if (random() % 9 == 0 && client.set_option("epoch", std::to_string(step).c_str()) != 0) {
          CHECK(policy != PolicyKind::kEpochLru && policy != PolicyKind::kEpochLfu);
        }
      }
    }
  }
}

void the_lowest_score_is_evicted_and_for_ties_the_smaller_key() {
  // A table of 40 rows has one bucket, so the order is exact.
  Client client({.row_bytes = 8, .capacity = 40, .policy = PolicyKind::kCustom});
  Keys keys;
  Scores scores;
  for (int64_t key = 0; key < 40; ++key) {
    keys.push_back(key - 20);
    scores.push_back(static_cast<uint64_t>(100 + key / 10));
  }
  CHECK(client.upsert(keys, 1, &scores) == SPARRING_OK);
  std::vector<std::pair<int64_t, Held>> evicted;
  const Keys incoming = {1000, 1001, 1002, -1000};
  const Scores incoming_scores = {500, 99, 101, 101};
  CHECK(client.upsert(incoming, 2, &incoming_scores, &evicted) == SPARRING_OK);
  CHECK(evicted.size() == 4);
  CHECK(evicted[0].first == -20 && evicted[0].second.score == 100);
  CHECK(evicted[1].first == 1001 && evicted[1].second.score == 99);  // lower than all
  CHECK(evicted[2].first == -19);
  CHECK(evicted[3].first == -18);
  CHECK(evicted[1].second.row == make_row(1001, 2, 8));
  const auto lowest = client.evict(12);
  CHECK(lowest.size() == 12);
  for (size_t i = 0; i < 7; ++i) CHECK(lowest[i].first == -17 + static_cast<int64_t>(i));
  CHECK(lowest[7].first == -1000 && lowest[8].first == -10);
}

void find_does_not_change_scores_and_touch_updates_them() {
  Client client({.row_bytes = 8, .capacity = 30, .policy = PolicyKind::kLru});
  Keys keys;
  for (int64_t key = 0; key < 30; ++key) keys.push_back(key);
  for (const int64_t key : keys) CHECK(client.upsert({key}, 1) == SPARRING_OK);
  const Rows before = client.scan();
  client.find(keys);
  CHECK(client.scan() == before);
  CHECK(client.touch({0, 1, 2, 77}) == SPARRING_OK);
  CHECK(client.stat().size == 30);
  std::vector<std::pair<int64_t, Held>> evicted;
  CHECK(client.upsert({100, 101}, 1, nullptr, &evicted) == SPARRING_OK);
  CHECK(evicted.size() == 2 && evicted[0].first == 3 && evicted[1].first == 4);
}

void evict_removes_the_lowest_scores_of_the_whole_table() {
  Client client({.row_bytes = 8, .policy = PolicyKind::kCustom});
  std::mt19937_64 random(8);
  std::vector<std::pair<uint64_t, int64_t>> order;
  Keys keys;
  Scores scores;
  for (int64_t key = 0; key < 150'000; ++key) {
    keys.push_back(key);
    scores.push_back(random() % 1000);
    order.push_back({scores.back(), key});
  }
  CHECK(client.upsert(keys, 1, &scores) == SPARRING_OK);
  std::sort(order.begin(), order.end());
  const auto evicted = client.evict(100'000);
  CHECK(evicted.size() == 100'000);
  for (size_t i = 0; i < evicted.size(); ++i) {
    CHECK(evicted[i].first == order[i].second && evicted[i].second.score == order[i].first);
    if (i % 1000 == 0) CHECK(evicted[i].second.row == make_row(evicted[i].first, 1, 8));
  }
  CHECK(client.evict(1'000'000).size() == 50'000);
  CHECK(client.stat().size == 0);
}

void full_table_with_an_empty_bucket_evicts_elsewhere() {
  // All rows are in the first of ten buckets; the next key belongs to the last one.
  Client client({.row_bytes = 8, .capacity = 480, .policy = PolicyKind::kLru});
  Keys keys;
  for (uint64_t i = 0; i < 480; ++i) keys.push_back(key_of_hash((i % 8 << 61) + i * 1'000'003));
  std::vector<std::pair<int64_t, Held>> evicted;
  CHECK(client.upsert(keys, 1, nullptr, &evicted) == SPARRING_OK);
  CHECK(evicted.empty() && client.stat().size == 480);
  const int64_t key = key_of_hash(~uint64_t{0});
  CHECK(client.upsert({key}, 2, nullptr, &evicted) == SPARRING_OK);
  CHECK(evicted.size() == 1 && client.stat().size == 480);
  CHECK(client.find({key})[0] == make_row(key, 2, 8));
}

void clear_frees_memory() {
  Client client({.row_bytes = 256});
  const uint64_t empty = client.stat().memory_bytes;
  CHECK(empty <= 16'384);
  Keys keys;
  for (int64_t key = 0; key < 100'000; ++key) keys.push_back(key);
  CHECK(client.upsert(keys, 1) == SPARRING_OK);
  CHECK(client.stat().memory_bytes <= 100'000u * (256 + 8) * 5 / 4);
  client.clear();
  CHECK(client.stat().memory_bytes == empty);
  CHECK(client.upsert(keys, 1) == SPARRING_OK && client.stat().size == 100'000);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"growing table agrees with a map", growing_table_agrees_with_a_map},
      {"colliding keys are only slower", colliding_keys_are_only_slower},
      {"a full table without policy rejects rows and is unchanged",
       a_full_table_without_policy_rejects_rows_and_is_unchanged},
      {"evicting table loses nothing", evicting_table_loses_nothing},
      {"the lowest score is evicted and for ties the smaller key",
       the_lowest_score_is_evicted_and_for_ties_the_smaller_key},
      {"find does not change scores and touch updates them",
       find_does_not_change_scores_and_touch_updates_them},
      {"evict removes the lowest scores of the whole table",
       evict_removes_the_lowest_scores_of_the_whole_table},
      {"full table with an empty bucket evicts elsewhere",
       full_table_with_an_empty_bucket_evicts_elsewhere},
      {"clear frees memory", clear_frees_memory},
  });
}
