// Finds in a tier below the first return the rows of all its keys, for any false positives of the
// filters, and the positions of the missing keys.
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

// Row of a key: the key, three times.
int64_t element(int64_t key, int64_t place) { return key * 10 + place; }

// No table has these.
constexpr int64_t kUnseen = 10'000'000;

// A tier with the keys that `every` divides.
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
      call.found[i] = call.keys[i] < kUnseen && call.keys[i] % every == 0;
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

// A stack's find in a tier with the keys that `every` divides, whose filters contain the keys that
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
      // A tier above had the row of every third key.
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

  // Checks rows and positions for a tier with the keys that `every` divides.
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
// The only missing key of the first tier among `count` keys.
constexpr int64_t kOnce = 20'000;
constexpr SparringColumns kWhole{0, kRowBytes};
constexpr SparringColumns kSome{8, 16};

void rows_and_positions_are_those_of_the_tier() {
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

void a_filter_with_false_positives_only_costs_finds() {
  Case asked(kMany, 5, 1, kWhole);
  const Below below = asked.run(nullptr, true);
  asked.check(below, 5, true);
  CHECK(below.num_skipped == 0);
  CHECK(asked.table->num_asked == asked.num_missing);
}

void keys_that_the_filters_exclude_cost_no_find() {
  Case asked(kMany, 1'000'000, 1'000'000, kWhole);
  const Below below = asked.run(nullptr, true);
  CHECK(below.num_skipped >= asked.num_missing - 1);
  CHECK(asked.table->num_asked == asked.num_missing - below.num_skipped);
}

// Replaces some keys, different ones in each round, by keys that the tier does not have; returns their
// number.
int64_t make_unseen(Case& asked, int64_t one_of, int64_t round = 0) {
  int64_t num_unseen = 0;
  for (int64_t& key : asked.keys) {
    // Not at the positions of samples.
    if (key % one_of != one_of / 2) continue;
    num_unseen += key % 3 != 0;
    key += kUnseen * (round + 1);
  }
  return num_unseen;
}

// Finds existing keys until the tier is trusted to have the next keys.
void come_to_trust(Case& asked) {
  while (asked.history.num_there < asked.history.patience) {
    asked.restart();
    CHECK(asked.run(nullptr, true).num_skipped == 0);
  }
}

// Finds a batch with some missing keys; returns the number of useless finds in the tier.
int64_t num_in_vain(Case& asked, int64_t one_of, int64_t round = 0) {
  asked.restart();
  const int64_t num_unseen = make_unseen(asked, one_of, round);
  CHECK(num_unseen > 0);
  const Below below = asked.run(nullptr, true);
  CHECK(asked.table->num_asked == asked.num_missing - below.num_skipped);
  CHECK(below.num_found == asked.num_missing - num_unseen);
  std::iota(asked.keys.begin(), asked.keys.end(), 0);
  return num_unseen - below.num_skipped;
}

// For any share of missing keys; a sample may contain none of them if they are rare.
void few_finds_of_missing_keys_are_useless() {
  for (const int64_t one_of : {2, 8, 31, 100, 500, 2'999}) {
    Case asked(kMany, 1, 1, kWhole);
    come_to_trust(asked);
    CHECK(num_in_vain(asked, one_of) <= asked.num_missing / 50);
  }
}

// Otherwise all keys would be looked up in the filters without benefit.
void trust_requires_many_consecutive_found_keys() {
  Case asked(kMany, 1, 1, kWhole);
  CHECK(num_in_vain(asked, 2'999) == 0);
  come_to_trust(asked);
  CHECK(num_in_vain(asked, 2'999) > 0);
  CHECK(num_in_vain(asked, 2'999, 1) == 0);
}

void after_a_wrong_trust_twice_as_many_found_keys_are_required() {
  Case asked(kMany, 1, 1, kWhole);
  int64_t patience = asked.history.patience;
  for (int64_t round = 0; round < 4; ++round) {
    come_to_trust(asked);
    CHECK(num_in_vain(asked, kOnce, round) == 1);
    CHECK(asked.history.patience == 2 * patience);
    patience *= 2;
  }
  // Keys that the filters exclude do not reduce trust.
  CHECK(num_in_vain(asked, kOnce, 5) == 0);
  CHECK(asked.history.patience == patience);
}

void few_keys_are_looked_up_in_the_filters() {
  Case few(700, 1, 1, kWhole);
  come_to_trust(few);
  CHECK(few.num_missing < 512);
  // One key, which is not in a sample.
  CHECK(num_in_vain(few, 700) == 0);
}

void continuously_missing_keys_cost_no_find() {
  for (const int64_t one_of : {int64_t{7}, int64_t{100}, int64_t{2'999}, kOnce}) {
    Case asked(kMany, 1, 1, kWhole);
    come_to_trust(asked);
    int64_t early = 0;
    int64_t late = 0;
    constexpr int64_t kRounds = 40;
    for (int64_t round = 0; round < kRounds; ++round) {
      // Existing keys in between, enough for the first trust.
      for (int run = 0; run < 3; ++run) {
        asked.restart();
        asked.run(nullptr, true);
      }
      (round < kRounds / 2 ? early : late) += num_in_vain(asked, one_of, round);
    }
    CHECK(early <= 60);
    CHECK(late == 0);
  }
}

// Threads may trust at the same time and lose another thread's update, but not repeatedly.
void threads_beside_each_other_soon_cost_no_trip() {
  const testing::ThreadExecutor threads(4);
  Case asked(kMany, 1, 1, kWhole);
  int64_t late = 0;
  for (int64_t round = 0; round < 40; ++round) {
    for (int run = 0; run < 3; ++run) {
      asked.restart();
      asked.run(threads.get(), true);
    }
    asked.restart();
    const int64_t num_unseen = make_unseen(asked, 500, round);
    const Below below = asked.run(threads.get(), true);
    CHECK(below.num_found == asked.num_missing - num_unseen);
    if (round >= 20) late += num_unseen - below.num_skipped;
    std::iota(asked.keys.begin(), asked.keys.end(), 0);
  }
  CHECK(asked.history.patience > int64_t{1} << 15);
  CHECK(late <= 20);  // the cost of one lost update; otherwise hundreds
}

void two_tiers_are_searched_in_one_call() {
  const testing::ThreadExecutor threads(4);
  for (const SparringExecutor* executor : {threads.get(), (const SparringExecutor*)nullptr}) {
    for (const bool is_staged : {true, false}) {
      for (const SparringColumns columns : {kWhole, kSome}) {
        for (const int64_t count : {int64_t{1}, int64_t{1'500}, kMany}) {
          // The first tier has every third key, which the case does not search below.
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
            // Excludes the rows of the first tier, and zeros of missing keys, from the check.
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

void the_error_of_a_tier_is_rethrown() {
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
      {"rows and positions are those of the tier", rows_and_positions_are_those_of_the_tier},
      {"a filter with false positives only costs finds",
       a_filter_with_false_positives_only_costs_finds},
      {"keys that the filters exclude cost no find", keys_that_the_filters_exclude_cost_no_find},
      {"few finds of missing keys are useless", few_finds_of_missing_keys_are_useless},
      {"trust requires many consecutive found keys",
       trust_requires_many_consecutive_found_keys},
      {"after a wrong trust, twice as many found keys are required",
       after_a_wrong_trust_twice_as_many_found_keys_are_required},
      {"few keys are looked up in the filters", few_keys_are_looked_up_in_the_filters},
      {"continuously missing keys cost no find", continuously_missing_keys_cost_no_find},
      {"concurrent threads soon cost no useless find", threads_beside_each_other_soon_cost_no_trip},
      {"two tiers are searched in one call", two_tiers_are_searched_in_one_call},
      {"the error of a tier is rethrown", the_error_of_a_tier_is_rethrown},
  });
}
