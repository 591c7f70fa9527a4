#include "index.h"

#include <algorithm>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "colliding_keys.h"
#include "match.h"

using namespace sparring::hkv;
using sparring::hkv::testing::colliding_keys;
using sparring::hkv::testing::key_of_hash;

namespace {

struct Known {
  uint32_t row;
  uint64_t score;
};
using Oracle = std::unordered_map<int64_t, Known>;

// Checks invariants 1 to 5 of bucket.h against the expected contents.
void check_invariants(const Index& index, const Oracle& oracle) {
  std::set<uint32_t> rows;
  uint64_t occupied = 0;
  std::set<const Bucket*> heads;
  uint64_t cursor = 0;
  for (const auto& [key, known] : oracle) heads.insert(index.home(index.hash(key)));
  for (const Bucket* head : heads) {
    for (const Bucket* part = head;; part = index.bucket(part->overflow)) {
      const uint64_t mask = occupied_slots(part);
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        if ((mask >> slot & 1) == 0) continue;
        const int64_t key = part->key(slot);
        CHECK(oracle.count(key) == 1);
        CHECK(part->digests[slot] == digest_of(index.hash(key)));
        CHECK(index.home(index.hash(key)) == head);
        CHECK(rows.insert(part->row(slot)).second);
        ++occupied;
      }
      if (part->overflow == 0) {
        CHECK(part == head || mask != 0);
        break;
      }
      CHECK(mask == kSlotMask);
    }
  }
  CHECK(occupied == oracle.size() && index.size() == oracle.size());
  std::vector<Entry> entries;
  CHECK(index.collect(cursor, oracle.size() + 1, entries));
  CHECK(entries.size() == oracle.size());
}

void check_same(const Index& index, const Oracle& oracle) {
  for (const auto& [key, known] : oracle) {
    const Place place = index.locate(key, index.hash(key));
    CHECK(place.bucket != nullptr && place.bucket->key(place.slot) == key);
    CHECK(place.bucket->row(place.slot) == known.row);
    if (index.has_scores()) CHECK(place.bucket->scores()[place.slot] == known.score);
  }
  check_invariants(index, oracle);
}

void fuzz(const Index::Options& options, const std::vector<int64_t>& keys, uint64_t most) {
  std::mt19937_64 random(3);
  Index index(options);
  Oracle oracle;
  uint32_t next_row = 0;
  for (uint64_t step = 0; step < 4 * keys.size(); ++step) {
    const int64_t key = keys[random() % keys.size()];
    const uint64_t hash = index.hash(key);
    const bool is_shrinking = step / keys.size() % 2 == 1;
    if (oracle.count(key) == 0 && !is_shrinking && oracle.size() < most) {
      oracle[key] = {next_row, random()};
      const Place place = index.insert(key, hash, next_row, oracle[key].score);
      CHECK(place.bucket->key(place.slot) == key);
      ++next_row;
    } else if (oracle.count(key) == 1 && random() % (is_shrinking ? 1 : 4) == 0) {
      CHECK(index.erase(key, hash) == oracle[key].row);
      oracle.erase(key);
      CHECK(index.erase(key, hash) == kNoRow);
    }
    if (step % (keys.size() / 3) == 0) check_same(index, oracle);
  }
  check_same(index, oracle);
}

std::vector<int64_t> spread_keys(uint64_t count) {
  std::vector<int64_t> keys = {0, -1, -2, -3, INT64_MIN, INT64_MAX};
  for (uint64_t i = keys.size(); i < count; ++i) keys.push_back(static_cast<int64_t>(i * 3));
  return keys;
}

void growing_index_agrees_with_a_map() {
  fuzz({.has_scores = false}, spread_keys(30'000), 30'000);
  fuzz({.has_scores = true, .seed = 12345}, spread_keys(30'000), 30'000);
}

void fixed_index_agrees_with_a_map() {
  const uint64_t rows = 4800;
  fuzz({.has_scores = true, .num_fixed_buckets = 100, .max_buckets = 100 + rows / 60},
       spread_keys(10'000), rows);
}

void colliding_keys_use_no_more_buckets_than_promised() {
  const uint64_t rows = 4800;
  // All keys fall into one bucket of a fixed index: its chain must fit into
  // rows / 60 buckets, although keys are inserted and erased.
  fuzz({.has_scores = true, .num_fixed_buckets = 100, .max_buckets = 100 + rows / 60},
       colliding_keys(6000, 30), rows);
}

void colliding_keys_do_not_explode_the_directory() {
  for (const uint32_t bits : {16u, 30u, 44u}) {
    const std::vector<int64_t> keys = colliding_keys(20'000, bits);
    Index index({});
    for (size_t i = 0; i < keys.size(); ++i) {
      index.insert(keys[i], index.hash(keys[i]), static_cast<uint32_t>(i), 0);
    }
    CHECK(index.num_buckets() <= 2 * keys.size() / 30);
    CHECK(index.memory_bytes() <= keys.size() * 64);
    for (size_t i = 0; i < keys.size(); ++i) {
      const Place place = index.locate(keys[i], index.hash(keys[i]));
      CHECK(place.bucket != nullptr && place.bucket->row(place.slot) == i);
    }
    CHECK(index.locate(1, index.hash(1)).bucket == nullptr);
  }
  fuzz({}, colliding_keys(6000, 30), 6000);
}

void chain_splits_once_the_table_has_grown() {
  Index index({});
  Oracle oracle;
  const auto chain_length = [&](uint64_t hash) {
    int length = 1;
    for (const Bucket* part = index.home(hash); part->overflow != 0; ++length) {
      part = index.bucket(part->overflow);
    }
    return length;
  };
  const uint64_t hash = uint64_t{0xabc} << 52;
  // First 600 keys in one 2^-12th of all hashes, then enough others to justify such a depth.
  std::vector<int64_t> keys = colliding_keys(600, 12, 0xabc);
  for (uint64_t i = 0; i < 200'000; ++i) keys.push_back(key_of_hash(i * 0x9e3779b97f4a7c15u));
  for (const int64_t key : keys) {
    const auto row = static_cast<uint32_t>(oracle.size());
    if (!oracle.emplace(key, Known{row, 0}).second) continue;
    index.insert(key, index.hash(key), row, 0);
    if (oracle.size() == 600) CHECK(chain_length(hash) == 10);
  }
  for (const int64_t key : colliding_keys(600, 12, 0xabc)) {
    CHECK(chain_length(index.hash(key)) <= 2);
  }
  check_same(index, oracle);
}

void collect_returns_every_entry_once_in_chunks_of_any_size() {
  std::vector<int64_t> keys = spread_keys(3000);
  const std::vector<int64_t> colliding = colliding_keys(500, 40);
  keys.insert(keys.end(), colliding.begin(), colliding.end());
  for (const uint64_t fixed : {uint64_t{0}, uint64_t{70}}) {
    Index index({.num_fixed_buckets = fixed});
    for (size_t i = 0; i < keys.size(); ++i) {
      index.insert(keys[i], index.hash(keys[i]), static_cast<uint32_t>(i), 0);
    }
    for (const uint64_t chunk : {uint64_t{1}, uint64_t{7}, uint64_t{59}, uint64_t{1000}, uint64_t{9999}}) {
      std::set<int64_t> seen;
      uint64_t cursor = 0;
      bool is_done = false;
      while (!is_done) {
        std::vector<Entry> entries;
        is_done = index.collect(cursor, chunk, entries);
        CHECK(entries.size() <= chunk);
        for (const Entry& entry : entries) {
          CHECK(keys[entry.row] == entry.key && seen.insert(entry.key).second);
        }
      }
      CHECK(seen.size() == keys.size());
    }
  }
}

void small_index_is_small_and_large_one_is_mostly_full() {
  Index index({});
  for (int64_t key = 0; key < 10; ++key) {
    index.insert(key, index.hash(key), static_cast<uint32_t>(key), 0);
  }
  CHECK(index.memory_bytes() <= 16384);
  uint64_t most_bytes_per_key = 0;
  for (int64_t key = 10; key < 1'000'000; ++key) {
    index.insert(key, index.hash(key), static_cast<uint32_t>(key), 0);
    if (key >= 200'000) {
      most_bytes_per_key = std::max(most_bytes_per_key, index.memory_bytes() / index.size());
    }
  }
  CHECK(most_bytes_per_key <= 45);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"growing index agrees with a map", growing_index_agrees_with_a_map},
      {"fixed index agrees with a map", fixed_index_agrees_with_a_map},
      {"colliding keys use no more buckets than promised",
       colliding_keys_use_no_more_buckets_than_promised},
      {"colliding keys do not explode the directory", colliding_keys_do_not_explode_the_directory},
      {"chain splits once the table has grown", chain_splits_once_the_table_has_grown},
      {"collect returns every entry once in chunks of any size",
       collect_returns_every_entry_once_in_chunks_of_any_size},
      {"small index is small and large one is mostly full",
       small_index_is_small_and_large_one_is_mostly_full},
  });
}
