#include "pool.h"

#include <algorithm>
#include <new>
#include <random>
#include <set>
#include <vector>

#include "check.h"

using namespace sparring::hkv;

namespace {

void numbers_in_use_are_distinct_and_released_ones_are_reused() {
  std::mt19937_64 random(1);
  Pool pool(12, 5000, 4);
  std::vector<uint32_t> used;
  uint64_t most_used = 0;
  for (int step = 0; step < 50'000; ++step) {
    if (used.empty() || (used.size() < 4000 && random() % 3 != 0)) {
      used.push_back(pool.allocate());
      std::memset(pool.at(used.back()), 0xff, 12);
    } else {
      std::swap(used[random() % used.size()], used.back());
      pool.release(used.back());
      used.pop_back();
    }
    most_used = std::max<uint64_t>(most_used, used.size());
    CHECK(pool.num_used() == used.size());
    CHECK(pool.end() == most_used);
  }
  CHECK(std::set<uint32_t>(used.begin(), used.end()).size() == used.size());
}

void reserve_beyond_the_limit_is_rejected_and_changes_nothing() {
  Pool pool(256, 10, 0);
  for (int i = 0; i < 8; ++i) pool.allocate();
  pool.release(3);
  pool.reserve(3);
  bool is_refused = false;
  try {
    pool.reserve(4);
  } catch (const std::bad_alloc&) {
    is_refused = true;
  }
  CHECK(is_refused && pool.num_used() == 7);
  for (int i = 0; i < 3; ++i) pool.allocate();
  CHECK(pool.num_used() == 10);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"numbers in use are distinct and released ones are reused",
       numbers_in_use_are_distinct_and_released_ones_are_reused},
      {"reserve beyond the limit is rejected and changes nothing",
       reserve_beyond_the_limit_is_rejected_and_changes_nothing},
  });
}
