// The order of keys as bytes is their order as integers, and sorting keeps the position of
// each key.
#include "key_order.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "check.h"

using namespace sparring::flash;

namespace {

std::string bytes_of(int64_t key) { return {KeyBytes(code_of(key)).data(), KeyBytes::size()}; }

void the_order_of_bytes_is_the_order_of_integers() {
  std::vector<int64_t> keys{std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max(), -1, 0, 1, 255, 256, -256, -257};
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) keys.push_back(static_cast<int64_t>(random() >> random() % 64));
  std::sort(keys.begin(), keys.end());
  for (size_t i = 1; i < keys.size(); ++i) {
    CHECK((keys[i - 1] < keys[i]) == (bytes_of(keys[i - 1]) < bytes_of(keys[i])));
  }
}

void bytes_are_converted_back_to_the_key() {
  std::mt19937_64 random(2);
  for (int i = 0; i < 1000; ++i) {
    const auto key = static_cast<int64_t>(random());
    CHECK(key_of(KeyBytes::code(bytes_of(key).data())) == key);
  }
}

void check_in_order(const std::vector<int64_t>& keys) {
  const auto placed = in_order(keys.data(), static_cast<int64_t>(keys.size()));
  CHECK(placed.size() == keys.size());
  std::vector<bool> is_seen(keys.size(), false);
  for (size_t i = 0; i < placed.size(); ++i) {
    const auto position = static_cast<size_t>(placed[i].position);
    CHECK(!is_seen[position]);
    is_seen[position] = true;
    CHECK(key_of(placed[i].code) == keys[position]);
    CHECK(i == 0 || placed[i - 1].code < placed[i].code);
  }
}

void keys_of_a_call_are_sorted_with_their_positions() {
  std::mt19937_64 random(3);
  for (const size_t count : {0, 1, 2, 100, 511, 512, 5000}) {
    for (const int shift : {0, 20, 44}) {
      std::vector<int64_t> keys;
      for (size_t i = 0; i < count; ++i) {
        // Odd multiples are distinct in their lower bits, for any upper bits.
        keys.push_back(static_cast<int64_t>(i * 7919 - (random() >> shift << 20 & ~0xffffffu)));
      }
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      check_in_order(keys);
      std::shuffle(keys.begin(), keys.end(), random);
      check_in_order(keys);
    }
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"the order of bytes is the order of integers", the_order_of_bytes_is_the_order_of_integers},
      {"bytes are converted back to the key", bytes_are_converted_back_to_the_key},
      {"keys of a call are sorted with their positions", keys_of_a_call_are_sorted_with_their_positions},
  });
}
