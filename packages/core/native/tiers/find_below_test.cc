// What a find gets from a tier below the first: the rows of all that is there, whatever the
// filters let pass, and where the others are.
#include "tiers/find_below.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "sparring/storage_border.h"
#include "testing/check.h"
#include "testing/thread_executor.h"

namespace sparring::tiers {
namespace {

constexpr uint64_t kRowBytes = 24;

// Row of a key: the key, thrice.
int64_t element(int64_t key, int64_t place) { return key * 10 + place; }

// Has the keys that `every` divides.
struct Table {
  int64_t every = 1;
  int64_t failing_key = -1;
  std::atomic<int64_t> num_asked{0};

  explicit Table(int64_t every_key) : every(every_key) {}

  uint64_t row_bytes() const { return kRowBytes; }
  void find(SparringFind& call) {
    num_asked += call.count;
    for (int64_t i = 0; i < call.count; ++i) {
      if (call.keys[i] == failing_key) throw border::StatusError(SPARRING_IO, "the disk is gone");
      call.found[i] = call.keys[i] % every == 0;
      int64_t row[3] = {};
      for (int64_t j = 0; j < 3 && call.found[i] != 0; ++j) row[j] = element(call.keys[i], j);
      std::memcpy(static_cast<char*>(call.rows) + static_cast<uint64_t>(i) * call.row_stride,
                  reinterpret_cast<char*>(row) + call.columns.begin,
                  call.columns.end - call.columns.begin);
    }
  }
  void upsert(SparringUpsert&) {}
  void erase(SparringErase&) {}
  void scan(SparringScan&) {}
  void stat(SparringStat& call) { call.row_bytes = kRowBytes; }
  void clear() {}
};

// A stack's find over a tier with the keys that `every` divides, whose filters know those that
// `filtered` divides.
struct Case {
  Case(int64_t count, int64_t every, int64_t filtered, SparringColumns asked_columns)
      : columns(asked_columns),
        table(std::make_shared<Table>(every)),
        storage(border::make_storage(table, "test 1.0")),
        handle(storage),
        keys(static_cast<size_t>(count)),
        rows(static_cast<size_t>(count) * width(), -7),
        found(static_cast<size_t>(count)),
        staged_keys(static_cast<size_t>(count)),
        staged_rows(static_cast<size_t>(count) * 3) {
    std::iota(keys.begin(), keys.end(), 0);
    for (int64_t key = 0; key < count; ++key) {
      // Of every third key a tier above had the row.
      if (key % 3 != 0) missing.push_back(key);
      if (key % filtered == 0) filters[static_cast<size_t>(key % 2)].add(&key, 1);
    }
    num_missing = static_cast<int64_t>(missing.size());
  }
  ~Case() { storage->release(storage); }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  size_t width() const { return (columns.end - columns.begin) / 8; }

  Below run(const SparringExecutor* executor, bool is_staged) {
    const Asked asked{keys.data(), columns, reinterpret_cast<char*>(rows.data()),
                      columns.end - columns.begin, found.data()};
    return find_below(executor, {handle, {&filters[0], &filters[1]}, history}, asked,
                      missing.data(), num_missing,
                      {staged_keys.data(),
                       is_staged ? reinterpret_cast<char*>(staged_rows.data()) : nullptr});
  }

  // As before the first run.
  void restart() {
    missing.clear();
    for (int64_t key = 0; key < static_cast<int64_t>(keys.size()); ++key) {
      if (key % 3 != 0) missing.push_back(key);
    }
    std::fill(found.begin(), found.end(), uint8_t{0});
    table->num_asked = 0;
  }

  Through run_first(const SparringExecutor* executor, const abi::StorageHandle& first,
                    bool is_staged) {
    missing.resize(keys.size());
    return find_first(executor, first, {handle, {&filters[0], &filters[1]}, history},
                      {keys.data(), columns, reinterpret_cast<char*>(rows.data()),
                       columns.end - columns.begin, found.data()},
                      static_cast<int64_t>(keys.size()), missing.data(),
                      {staged_keys.data(),
                       is_staged ? reinterpret_cast<char*>(staged_rows.data()) : nullptr});
  }

  // Whether rows and places are those of a tier with the keys that `every` divides.
  void check(const Below& below, int64_t every, bool is_staged) {
    const auto begin = static_cast<int64_t>(columns.begin / 8);
    std::vector<int64_t> wanted;
    std::vector<int64_t> left;
    for (const int64_t key : keys) {
      if (key % 3 != 0) (key % every == 0 ? wanted : left).push_back(key);
      const bool is_there = key % 3 != 0 && key % every == 0;
      CHECK(found[static_cast<size_t>(key)] == is_there);
      for (size_t j = 0; j < width(); ++j) {
        const int64_t expected = is_there ? element(key, begin + static_cast<int64_t>(j)) : -7;
        CHECK(rows[static_cast<size_t>(key) * width() + j] == expected);
      }
    }
    CHECK(below.num_found == static_cast<int64_t>(wanted.size()));
    for (size_t i = 0; i < wanted.size() && is_staged; ++i) {
      for (int64_t j = 0; j < 3; ++j) {
        CHECK(staged_rows[3 * i + static_cast<size_t>(j)] == element(staged_keys[i], j));
      }
    }
    staged_keys.resize(wanted.size());
    std::sort(staged_keys.begin(), staged_keys.end());
    CHECK(staged_keys == wanted);
    missing.resize(left.size());
    std::sort(missing.begin(), missing.end());
    CHECK(missing == left);
    CHECK(below.seconds >= 0);
  }

  SparringColumns columns;
  std::shared_ptr<Table> table;
  SparringStorage* storage;
  abi::StorageHandle handle;
  std::vector<int64_t> keys;
  std::vector<int64_t> missing;
  int64_t num_missing;
  std::vector<int64_t> rows;
  std::vector<uint8_t> found;
  std::vector<int64_t> staged_keys;
  std::vector<int64_t> staged_rows;
  History history;
  kernels::BlockedBloom filters[2]{{0.01, 100'000, 1}, {0.01, 100'000, 2}};
};

constexpr int64_t kMany = 20'011;
constexpr SparringColumns kWhole{0, kRowBytes};
constexpr SparringColumns kSome{8, 16};

void rows_and_places_are_those_of_the_tier() {
  const testing::ThreadExecutor threads(4);
  for (const SparringExecutor* executor : {threads.get(), (const SparringExecutor*)nullptr}) {
    for (const bool is_staged : {true, false}) {
      for (const SparringColumns columns : {kWhole, kSome}) {
        for (const int64_t every : {1, 2, 5, 1'000'000}) {
          for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{700}, kMany}) {
            Case asked(count, every, every, columns);
            asked.check(asked.run(executor, is_staged), every, is_staged);
          }
        }
      }
    }
  }
}

void a_filter_that_lets_too_much_pass_costs_trips_only() {
  Case asked(kMany, 5, 1, kWhole);
  const Below below = asked.run(nullptr, true);
  asked.check(below, 5, true);
  CHECK(below.num_skipped == 0);
  CHECK(asked.table->num_asked == asked.num_missing);
}

void keys_that_the_filters_rule_out_cost_no_trip() {
  Case asked(kMany, 1'000'000, 1'000'000, kWhole);
  const Below below = asked.run(nullptr, true);
  CHECK(below.num_skipped >= asked.num_missing - 1);
  CHECK(asked.table->num_asked == asked.num_missing - below.num_skipped);
}

// Some of the keys are moved to where the tier has none; returns how many it is asked for.
int64_t make_unseen(Case& asked, int64_t one_of) {
  int64_t num_unseen = 0;
  for (int64_t& key : asked.keys) {
    // Not where samples begin.
    if (key % one_of != one_of / 2) continue;
    num_unseen += key % 3 != 0;
    key += 10'000'019;
  }
  return num_unseen;
}

// Whatever their share, and after however many chunks that were whole: a sample may miss them where
// they are few.
void few_keys_are_asked_for_in_vain() {
  for (const int num_whole_runs : {1, 8}) {
    for (const int64_t one_of : {2, 8, 30, 100, 500, 3'000}) {
      Case asked(kMany, 1, 1, kWhole);
      for (int run = 0; run < num_whole_runs; ++run) {
        CHECK(asked.run(nullptr, true).num_skipped == 0);
        CHECK(asked.history.num_whole > 0);
        asked.restart();
      }
      const int64_t num_unseen = make_unseen(asked, one_of);
      const Below below = asked.run(nullptr, true);
      CHECK(asked.table->num_asked == asked.num_missing - below.num_skipped);
      const int64_t in_vain = num_unseen - below.num_skipped;
      CHECK(in_vain <= asked.num_missing / 50);
    }
  }
}

void few_keys_that_are_there_say_nothing_of_many() {
  Case few(100, 1, 1, kWhole);
  few.run(nullptr, true);
  CHECK(few.history.num_whole == 0);
  few.history.num_whole = 3;
  few.restart();
  few.run(nullptr, true);
  CHECK(few.history.num_whole == 3);
  make_unseen(few, 2);
  few.restart();
  few.run(nullptr, true);
  CHECK(few.history.num_whole == 0);
}

// As soon as one chunk had some, until one had none.
void unseen_keys_that_come_again_and_again_cost_no_trip() {
  Case asked(kMany, 1, 1, kWhole);
  const int64_t num_unseen = make_unseen(asked, 100);
  const Below below = asked.run(nullptr, true);
  CHECK(below.num_skipped >= num_unseen - 1);
  CHECK(asked.history.num_whole == 0);
}

void two_tiers_are_asked_in_one_call() {
  const testing::ThreadExecutor threads(4);
  for (const SparringExecutor* executor : {threads.get(), (const SparringExecutor*)nullptr}) {
    for (const bool is_staged : {true, false}) {
      for (const SparringColumns columns : {kWhole, kSome}) {
        for (const int64_t count : {int64_t{1}, int64_t{1'500}, kMany}) {
          // The first tier has every third key, as those that a case never asks below for.
          const auto table = std::make_shared<Table>(3);
          SparringStorage* const storage = border::make_storage(table, "test 1.0");
          const abi::StorageHandle first(storage);
          Case asked(count, 5, 5, columns);
          const Through through = asked.run_first(executor, first, is_staged);
          storage->release(storage);
          CHECK(table->num_asked == count);
          CHECK(through.num_missing == asked.num_missing);
          CHECK(through.seconds >= 0);
          for (int64_t key = 0; key < count; ++key) {
            // What the first tier had is left out of the check, and so are zeros for misses.
            uint8_t& is_found = asked.found[static_cast<size_t>(key)];
            const bool is_first = key % 3 == 0;
            for (size_t j = 0; j < asked.width(); ++j) {
              int64_t& value = asked.rows[static_cast<size_t>(key) * asked.width() + j];
              const auto place = static_cast<int64_t>(columns.begin / 8 + j);
              if (is_first) CHECK(is_found == 1 && value == element(key, place));
              if (is_found == 0) CHECK(value == 0);
              if (is_first || is_found == 0) value = -7;
            }
            if (is_first) is_found = 0;
          }
          asked.check(through.below, 5, is_staged);
        }
      }
    }
  }
}

void a_tier_that_fails_is_heard() {
  const testing::ThreadExecutor threads(4);
  Case asked(kMany, 1, 1, kWhole);
  asked.table->failing_key = kMany - 1 - (kMany - 1) % 3 - 1;
  CHECK_THROWS(asked.run(threads.get(), true), abi::StorageError);
}

}  // namespace
}  // namespace sparring::tiers

int main() {
  using namespace sparring::tiers;
  return sparring::testing::run({
      {"rows and places are those of the tier", rows_and_places_are_those_of_the_tier},
      {"a filter that lets too much pass costs trips only",
       a_filter_that_lets_too_much_pass_costs_trips_only},
      {"keys that the filters rule out cost no trip", keys_that_the_filters_rule_out_cost_no_trip},
      {"few keys are asked for in vain", few_keys_are_asked_for_in_vain},
      {"few keys that are there say nothing of many", few_keys_that_are_there_say_nothing_of_many},
      {"unseen keys that come again and again cost no trip",
       unseen_keys_that_come_again_and_again_cost_no_trip},
      {"two tiers are asked in one call", two_tiers_are_asked_in_one_call},
      {"a tier that fails is heard", a_tier_that_fails_is_heard},
  });
}
