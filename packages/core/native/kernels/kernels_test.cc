// The kernels on the pool's threads with several callers, and compile-time checks. Python
// tests check everything else, in tests/kernels.
#include <algorithm>
#include <atomic>
#include <limits>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "execution/pool.h"
#include "kernels/dedup.h"
#include "kernels/finite.h"
#include "kernels/key_index.h"
#include "kernels/scatter.h"
#include "kernels/scratch.h"
#include "sparring/initial_value.h"
#include "testing/check.h"

namespace sparring::kernels {
namespace {

static_assert(mix64(0) == 0);
static_assert(partition_of(-1) == 1611 && partition_of(INT64_MAX) == 2747);
static_assert(fnv1a(std::string_view("a")) == 0xaf63dc4c8601ec8cu);

// Known results of the reference implementation.
constexpr bool is_philox(PhiloxBlock counter, uint64_t key, PhiloxBlock expected) {
  philox4x32_10<Scalar>(counter.words, key);
  return std::equal(counter.words, counter.words + 4, expected.words);
}
static_assert(is_philox({{0, 0, 0, 0}}, 0,
                        {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}}));
static_assert(is_philox({{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}}, ~uint64_t{0},
                        {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}}));

using execution::Pool;
using execution::process_executor;

struct Configured {
  explicit Configured(int threads) { Pool::process().configure(threads); }
  ~Configured() { Pool::process().configure(0); }
};

std::vector<int64_t> some_ids(int64_t count, uint64_t num_distinct) {
  std::mt19937_64 random(num_distinct);
  std::vector<int64_t> ids(static_cast<size_t>(count));
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % num_distinct * 0x9e3779b97f4a7c15u);
  return ids;
}

struct Deduplicated {
  std::vector<int64_t> keys;
  std::vector<int64_t> inverse;
  bool operator==(const Deduplicated&) const = default;
};

Deduplicated deduplicate(const SparringExecutor* executor, const std::vector<int64_t>& ids) {
  Deduplicated result{ids, ids};
  const int64_t num_keys = dedup(executor, ids.data(), static_cast<int64_t>(ids.size()),
                                 result.keys.data(), result.inverse.data());
  result.keys.resize(static_cast<size_t>(num_keys));
  return result;
}

std::vector<float> sum_up(const SparringExecutor* executor, const std::vector<int64_t>& targets,
                          int64_t num_rows) {
  constexpr int64_t kDim = 20;
  std::vector<float> source(targets.size() * kDim);
  for (size_t i = 0; i < source.size(); ++i) source[i] = 1.0f / static_cast<float>(i + 1);
  std::vector<float> out(static_cast<size_t>(num_rows * kDim));
  ScatterArguments<float> arguments{};
  arguments.source = source.data();
  arguments.targets = targets.data();
  arguments.out = out.data();
  arguments.count = arguments.num_bags = static_cast<int64_t>(targets.size());
  arguments.num_rows = num_rows;
  arguments.dim = kDim;
  scatter(executor, arguments);
  return out;
}

void callers_on_several_threads_do_not_disturb_each_other() {
  const Configured four(4);
  const std::vector<int64_t> ids = some_ids(70'000, 20'000);
  const Deduplicated expected = deduplicate(nullptr, ids);
  const auto num_rows = static_cast<int64_t>(expected.keys.size());
  const std::vector<float> expected_sums = sum_up(nullptr, expected.inverse, num_rows);

  std::atomic<int> num_wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        num_wrong += deduplicate(process_executor(), ids) != expected;
        num_wrong += sum_up(process_executor(), expected.inverse, num_rows) != expected_sums;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(num_wrong == 0);
}

void a_nested_call_has_separate_scratch_memory() {
  struct Kept {
    int64_t memory_bytes() const { return bytes; }
    int64_t bytes = 0;
  };
  Kept* kept = nullptr;
  {
    const Scratch<Kept> outer;
    kept = &*outer;
    const Scratch<Kept> inner;
    CHECK(&*inner != &*outer);
  }
  {
    const Scratch<Kept> again;
    CHECK(&*again == kept);
    again->bytes = kMostScratchBytes + 1;
  }
  const Scratch<Kept> fresh;
  CHECK(fresh->bytes == 0);
}

// For UndefinedBehaviorSanitizer: vectors need only the alignment of an element.
template <class T>
void values_need_the_alignment_of_one_element() {
  std::vector<T> values(3'000, T{1});
  for (size_t start = 0; start < 40; ++start) {
    const T* from = values.data() + start;
    const auto count = static_cast<int64_t>(values.size() - start);
    CHECK(is_finite(nullptr, from, count));
    values.back() = std::numeric_limits<T>::infinity();
    CHECK(!is_finite(nullptr, from, count));
    values.back() = 1;
  }
}

void an_index_keeps_its_keys_while_it_grows() {
  KeyIndex index;
  index.reset(1);
  for (uint32_t i = 0; i < 5'000; ++i) {
    index.reserve(i + 1);
    CHECK(index.find_or_insert(index.hash(i), i, i) == i);
  }
  for (uint32_t i = 0; i < 5'000; ++i) CHECK(index.find_or_insert(index.hash(i), i, 9'999) == i);
  index.reset(1);
  CHECK(index.find_or_insert(index.hash(7), 7, 3) == 3);
}

}  // namespace
}  // namespace sparring::kernels

int main() {
  using namespace sparring::kernels;
  return sparring::testing::run({
      {"callers on several threads do not disturb each other",
       callers_on_several_threads_do_not_disturb_each_other},
      {"a nested call has separate scratch memory", a_nested_call_has_separate_scratch_memory},
      {"values need the alignment of one float", values_need_the_alignment_of_one_element<float>},
      {"values need the alignment of one double", values_need_the_alignment_of_one_element<double>},
      {"an index keeps its keys while it grows", an_index_keeps_its_keys_while_it_grows},
  });
}
