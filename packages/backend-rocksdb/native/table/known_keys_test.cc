// The results of the set of known keys are correct, within its budget.
#include "known_keys.h"

#include <cstdint>
#include <random>
#include <unordered_set>

#include "check.h"

using sparring::flash::KnownKeys;

namespace {

// Checks the results for all keys against the table with the keys `held`.
void check_says_the_truth(const KnownKeys& known, const std::unordered_set<uint64_t>& held,
                          uint64_t num_codes) {
  for (uint64_t code = 0; code < num_codes; ++code) {
    if (known.contains(code)) CHECK(held.contains(code));
    if (known.is_complete()) CHECK(known.contains(code) == held.contains(code));
  }
}

void random_writes(uint64_t budget_bytes, bool stays_complete) {
  constexpr uint64_t kCodes = 20000;
  std::mt19937_64 random(budget_bytes);
  KnownKeys known(budget_bytes, true);
  std::unordered_set<uint64_t> held;
  for (int turn = 0; turn < 100000; ++turn) {
    const uint64_t code = random() % kCodes;
    if (random() % 3 == 0) {
      held.erase(code);
      known.erase(code);
    } else {
      held.insert(code);
      known.insert(code);
    }
    CHECK(known.memory_bytes() <= budget_bytes);
    if (turn % 20000 == 0) check_says_the_truth(known, held, kCodes);
  }
  check_says_the_truth(known, held, kCodes);
  CHECK(known.is_complete() == stays_complete);
  known.clear(true);
  CHECK(known.memory_bytes() == 0);
  check_says_the_truth(known, {}, kCodes);
}

void results_are_correct_with_space_for_all_keys() { random_writes(1 << 20, true); }
void results_are_correct_with_space_for_some_keys() { random_writes(1 << 15, false); }
void results_are_correct_without_space() { random_writes(0, false); }

void every_code_can_be_known() {
  KnownKeys known(1 << 16, false);
  for (const uint64_t code : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 63}) {
    CHECK(!known.contains(code));
    known.insert(code);
    known.insert(code);
    CHECK(known.contains(code));
    known.erase(code);
    CHECK(!known.contains(code));
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"results are correct with space for all keys", results_are_correct_with_space_for_all_keys},
      {"results are correct with space for some keys", results_are_correct_with_space_for_some_keys},
      {"results are correct without space", results_are_correct_without_space},
      {"every code can be known", every_code_can_be_known},
  });
}
