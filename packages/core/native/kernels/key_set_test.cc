#include "kernels/key_set.h"

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "testing/check.h"

namespace sparring::kernels {
namespace {

// Comparison with std::set over many batches, with extreme and repeated keys.
void results_equal_those_of_a_set() {
  std::mt19937_64 random(7);
  KeySet keys;
  std::set<int64_t> expected;
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> batch{std::numeric_limits<int64_t>::min(),
                               std::numeric_limits<int64_t>::max(), -1, 0};
    for (int i = 0; i < 300; ++i) batch.push_back(static_cast<int64_t>(random() % 40'000) - 20'000);
    const auto count = static_cast<int64_t>(batch.size());
    std::vector<uint8_t> answers(batch.size());
    keys.contains(batch.data(), count, answers.data());
    for (size_t i = 0; i < batch.size(); ++i) CHECK((answers[i] == 1) == expected.contains(batch[i]));
    keys.add(batch.data(), count, answers.data());
    for (size_t i = 0; i < batch.size(); ++i) {
      CHECK((answers[i] == 1) == expected.insert(batch[i]).second);
    }
    CHECK(keys.size() == static_cast<int64_t>(expected.size()));
  }
  std::vector<int64_t> all(expected.size());
  keys.copy_to(all.data());
  CHECK(std::set<int64_t>(all.begin(), all.end()) == expected);
}

void an_empty_set_uses_no_memory() {
  const KeySet keys;
  CHECK(keys.memory_bytes() == 0);
  const int64_t least = std::numeric_limits<int64_t>::min();
  uint8_t answer = 7;
  keys.contains(&least, 1, &answer);
  CHECK(answer == 0);
}

}  // namespace
}  // namespace sparring::kernels

int main() {
  using namespace sparring::kernels;
  return sparring::testing::run({
      {"results equal those of a set", results_equal_those_of_a_set},
      {"an empty set uses no memory", an_empty_set_uses_no_memory},
  });
}
