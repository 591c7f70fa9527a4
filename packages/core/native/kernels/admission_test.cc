// Compares admission filters with plain containers, and uses them on several threads. Python
// tests check decisions for tables, in tests/kernels/test_admission_filters.py.
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/admission.h"
#include "kernels/bloom_filter.h"
#include "kernels/frequency_filter.h"
#include "kernels/probability_filter.h"
#include "testing/check.h"

namespace sparring::kernels {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

std::vector<std::unique_ptr<AdmissionFilter>> one_of_each() {
  std::vector<std::unique_ptr<AdmissionFilter>> filters;
  filters.push_back(std::make_unique<FrequencyFilter>(3, 1 << 14));
  filters.push_back(std::make_unique<ProbabilityFilter>(0.5, 7));
  filters.push_back(std::make_unique<BloomFilter>(3, BloomShape::for_keys(0.01, 1'000), 7));
  filters.push_back(std::make_unique<BloomFilter>(30, BloomShape::for_keys(0.01, 1'000), 7));
  return filters;
}

std::vector<uint8_t> admit(AdmissionFilter& filter, const std::vector<int64_t>& keys,
                           int64_t step = 1) {
  std::vector<uint8_t> answers(keys.size(), 9);
  filter.admit(keys.data(), static_cast<int64_t>(keys.size()), step, answers.data());
  return answers;
}

// Small enough that keys of one cluster are freed, moved and wrap around the end.
void frequency_counts_like_a_map() {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    const uint32_t k = 2 + seed % 4;
    FrequencyFilter filter(k, 100 * FrequencyFilter::kSlotBytes);  // room for 75 keys
    std::map<int64_t, uint32_t> counts;
    for (int step = 0; step < 400; ++step) {
      std::map<int64_t, bool> batch;
      while (batch.size() < 20) {
        const int64_t key = static_cast<int64_t>(random() % 70);
        batch[key == 0 ? kLowest : key == 1 ? kHighest : key - 35] = true;
      }
      std::vector<int64_t> keys;
      for (const auto& each : batch) keys.push_back(each.first);
      const std::vector<uint8_t> answers = admit(filter, keys);
      for (size_t i = 0; i < keys.size(); ++i) {
        const bool is_due = ++counts[keys[i]] >= k;
        CHECK(answers[i] == (is_due ? 1 : 0));
        if (is_due) counts.erase(keys[i]);
      }
    }
    CHECK(filter.num_forgotten() == 0);
    CHECK(filter.memory_bytes() <= 100 * FrequencyFilter::kSlotBytes);
  }
}

// New keys for a full filter of 75 keys: all counts are halved once.
void frequency_ages_like_a_map() {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    FrequencyFilter filter(100, 100 * FrequencyFilter::kSlotBytes);
    std::map<int64_t, uint32_t> counts;
    for (int64_t key = 0; key < 75; ++key) {
      counts[key] = 1 + static_cast<uint32_t>(random() % 5);
      for (uint32_t i = 0; i < counts[key]; ++i) admit(filter, {key});
    }
    CHECK(filter.num_forgotten() == 0);
    std::vector<int64_t> strangers;
    for (int64_t key = 1'000; key < 1'100; ++key) strangers.push_back(key);
    admit(filter, strangers);
    for (auto& each : counts) each.second /= 2;
    CHECK(filter.num_forgotten() == 100);  // 175 keys came, and 75 have room
    for (const auto& [key, count] : counts) {
      if (count == 0) continue;
      for (uint32_t i = count + 1; i < 100; ++i) CHECK(admit(filter, {key})[0] == 0);
      CHECK(admit(filter, {key})[0] == 1);
    }
  }
}

void deciding_counts_nothing() {
  for (const auto& filter : one_of_each()) {
    admit(*filter, {1, 2, kLowest, kHighest});
    const std::string before = filter->save();
    std::vector<uint8_t> answers(3);
    const int64_t keys[] = {2, 3, kLowest};
    for (int i = 0; i < 10; ++i) filter->decide(keys, 3, 2, answers.data());
    CHECK(filter->save() == before);
  }
}

void any_flipped_bit_is_rejected_and_changes_nothing() {
  for (const auto& filter : one_of_each()) {
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < 50; ++key) keys.push_back(key * 77);
    admit(*filter, keys);
    const std::string saved = filter->save();
    for (size_t bit = 0; bit < saved.size() * 8; bit += saved.size() > 4'096 ? 13 : 1) {
      std::string broken = saved;
      broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << bit % 8));
      CHECK_THROWS(filter->load(broken), std::invalid_argument);
    }
    for (size_t length = 0; length < std::min<size_t>(saved.size(), 500); ++length) {
      CHECK_THROWS(filter->load(std::string_view(saved).substr(0, length)), std::invalid_argument);
    }
    CHECK_THROWS(filter->load(saved + std::string(8, '\0')), std::invalid_argument);
    CHECK(filter->save() == saved);
    filter->load(saved);
    CHECK(filter->save() == saved);
  }
}

void several_threads_may_use_a_filter() {
  for (const auto& filter : one_of_each()) {
    const std::string empty = filter->save();
    std::atomic<int> num_admitted = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        std::vector<int64_t> keys;
        for (int64_t key = 0; key < 300; ++key) keys.push_back(key * 4 + thread);
        for (int64_t step = 1; step <= 20; ++step) {
          for (const uint8_t each : admit(*filter, keys, step)) num_admitted += each;
          if (thread == 0) {
            filter->save();
            filter->memory_bytes();
            filter->num_forgotten();
          }
        }
      });
    }
    for (std::thread& each : threads) each.join();
    CHECK(num_admitted >= 0);
    filter->load(empty);
    CHECK(filter->save() == empty);
  }
}

}  // namespace
}  // namespace sparring::kernels

int main() {
  using namespace sparring::kernels;
  return sparring::testing::run({
      {"frequency counts like a map", frequency_counts_like_a_map},
      {"frequency ages like a map", frequency_ages_like_a_map},
      {"deciding counts nothing", deciding_counts_nothing},
      {"any flipped bit is rejected and changes nothing",
       any_flipped_bit_is_rejected_and_changes_nothing},
      {"several threads may use a filter", several_threads_may_use_a_filter},
  });
}
