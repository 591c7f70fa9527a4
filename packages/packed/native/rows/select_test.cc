// Tests selection from blocks of rows with an executor; Python's tests compare with sorting.
#include "rows/select.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"
#include "rows/simd.h"
#include "sparring_packed.h"
#include "thread_executor.h"

namespace {

constexpr int64_t kQueries = 300;
constexpr int64_t kBlocks = 5;
constexpr int64_t kRows = 1001;
constexpr int64_t kBest = 7;
constexpr int64_t kCapacity = 9;
constexpr int64_t kKinds = 5;

// Few distinct values, so that many are equal. A row whose start is NaN is never selected.
float score_of(int64_t query, int64_t id) {
  return static_cast<float>((id * 7919 + query % kKinds * 104729) % 211);
}

struct Selection {
  std::vector<SparringPackedBest> best = std::vector<SparringPackedBest>(kQueries * kCapacity);
  std::vector<int64_t> counts = std::vector<int64_t>(kQueries);
  std::vector<int64_t> excluded;
  std::vector<int64_t> offsets{0};

  SparringStatus add(const std::vector<int64_t>& ids, bool is_last, const SparringExecutor* executor) {
    // A query selects its own element of each row.
    std::vector<float> queries(kQueries * kKinds);
    for (int64_t query = 0; query < kQueries; ++query) {
      queries[static_cast<size_t>(query * kKinds + query % kKinds)] = 1;
    }
    std::vector<float> rows, starts;
    for (const int64_t id : ids) {
      starts.push_back(id % 100 == 3 ? std::nanf("") : 0);
      for (int64_t kind = 0; kind < kKinds; ++kind) rows.push_back(score_of(kind, id));
    }
    SparringPackedSelect arguments{};
    arguments.call.struct_bytes = sizeof arguments;
    arguments.call.device.type = 1;
    arguments.call.executor = executor;
    arguments.num_queries = kQueries;
    arguments.num_rows = static_cast<int64_t>(ids.size());
    arguments.ids = ids.data();
    arguments.dim = kKinds;
    arguments.queries = queries.data();
    arguments.rows = rows.data();
    arguments.starts = starts.data();
    arguments.excluded = excluded.data();
    arguments.excluded_offsets = offsets.data();
    arguments.k = kBest;
    arguments.capacity = kCapacity;
    arguments.best = best.data();
    arguments.counts = counts.data();
    arguments.is_last = is_last ? 1 : 0;
    const SparringStatus status = sparring_packed_select(&arguments);
    if (arguments.call.error.release != nullptr) arguments.call.error.release(&arguments.call.error);
    return status;
  }
};

void test_the_best_are_those_of_a_sort(const SparringExecutor* executor) {
  Selection selection;
  for (int64_t query = 0; query < kQueries; ++query) {
    for (int64_t id = query % 3; id < 400; id += 3) selection.excluded.push_back(id);
    selection.offsets.push_back(static_cast<int64_t>(selection.excluded.size()));
  }
  for (int64_t block = 0; block < kBlocks; ++block) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < kRows; ++i) ids.push_back((kBlocks - block) * kRows - i - 1);
    CHECK(selection.add(ids, false, executor) == SPARRING_OK);
  }
  CHECK(selection.add({}, true, executor) == SPARRING_OK);
  for (int64_t query = 0; query < kQueries; ++query) {
    std::vector<SparringPackedBest> all;
    for (int64_t id = 0; id < kBlocks * kRows; ++id) {
      if (id % 100 == 3 || (id < 400 && id % 3 == query % 3)) continue;
      all.push_back({id, score_of(query, id), 0});
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
    CHECK(selection.counts[static_cast<size_t>(query)] == kBest);
    for (int64_t i = 0; i < kBest; ++i) {
      const SparringPackedBest& found = selection.best[static_cast<size_t>(query * kCapacity + i)];
      CHECK(found.id == all[static_cast<size_t>(i)].id);
      CHECK(found.score == all[static_cast<size_t>(i)].score);
    }
  }
}

void test_inputs_that_do_not_match_are_rejected() {
  Selection selection;
  selection.offsets.assign(kQueries + 1, 0);
  CHECK(selection.add({1, 2}, true, nullptr) == SPARRING_OK);
  CHECK(selection.counts[0] == 2);
  selection.offsets[1] = -1;
  CHECK(selection.add({3}, true, nullptr) == SPARRING_INVALID_ARGUMENT);
  selection.offsets[1] = 0;
  selection.counts[5] = kCapacity;
  CHECK(selection.add({3}, true, nullptr) == SPARRING_INVALID_ARGUMENT);
}

void test_alone() { test_the_best_are_those_of_a_sort(nullptr); }

void test_on_threads() {
  const sparring::testing::ThreadExecutor threads(3);
  test_the_best_are_those_of_a_sort(threads.get());
}

void test_levels() {
  for (const char* level : {"portable", "avx2", "avx512"}) {
    if (sparring::packed::set_simd_level(level)) test_alone();
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"the best are those of a sorted list", test_alone},
      {"the best are the same on threads", test_on_threads},
      {"the best are the same at each SIMD level", test_levels},
      {"inputs that do not match are rejected", test_inputs_that_do_not_match_are_rejected},
  });
}
