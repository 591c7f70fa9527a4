#include "directory.h"

#include <map>
#include <random>
#include <vector>

#include "check.h"

using namespace sparring::hkv;

namespace {

void splits_map_each_hash_to_the_bucket_of_its_prefix() {
  std::mt19937_64 random(2);
  Directory directory(Directory::kGrowing);
  std::map<uint64_t, std::pair<uint32_t, uint32_t>> buckets;  // first hash: (number, depth)
  buckets[0] = {0, 0};
  uint32_t next = 1;
  const auto bucket_at = [&](uint64_t hash) { return std::prev(buckets.upper_bound(hash)); };
  for (int step = 0; step < 3000; ++step) {
    // Intentionally uneven: half of all splits are in one 64th of the hashes.
    const uint64_t hash = step % 2 == 0 ? random() : random() >> 6;
    const auto found = bucket_at(hash);
    const auto [number, depth] = found->second;
    if (depth >= 20) continue;
    directory.prepare_split(hash, depth);
    CHECK(directory.bucket_of(hash) == number);
    directory.split(hash, depth, next);
    found->second.second = depth + 1;
    buckets[found->first + (uint64_t{1} << (63 - depth))] = {next++, depth + 1};
  }
  CHECK(next > 2000);
  for (int probe = 0; probe < 100'000; ++probe) {
    const uint64_t hash = probe % 2 == 0 ? random() : random() >> 6;
    CHECK(directory.bucket_of(hash) == bucket_at(hash)->second.first);
  }
  for (auto at = buckets.begin(); at != buckets.end(); ++at) {
    const uint64_t end = std::next(at) == buckets.end() ? 0 : std::next(at)->first;
    CHECK(directory.last_hash_of(at->first, at->second.second) == end - 1);
    CHECK(directory.last_hash_of(end - 1, at->second.second) == end - 1);
  }
}

void fixed_directory_is_monotonic_and_even() {
  for (const uint64_t num_buckets : {uint64_t{1}, uint64_t{3}, uint64_t{64}, uint64_t{1000}}) {
    Directory directory(num_buckets);
    uint64_t hash = 0;
    for (uint64_t bucket = 0; bucket < num_buckets; ++bucket) {
      CHECK(directory.bucket_of(hash) == bucket);
      const uint64_t last = directory.last_hash_of(hash, 0);
      CHECK(directory.bucket_of(last) == bucket);
      const uint64_t share = ~uint64_t{0} / num_buckets;
      CHECK(last - hash - share + 2 <= 4);
      hash = last + 1;
    }
    CHECK(hash == 0);
    CHECK(directory.memory_bytes() == 0);
  }
}

void words_are_counted() {
  Directory directory(Directory::kGrowing);
  CHECK(directory.memory_bytes() == 0);
  uint32_t next = 1;
  for (uint32_t depth = 0; depth < 12; ++depth) {
    directory.prepare_split(0, depth);
    directory.split(0, depth, next++);
  }
  CHECK(directory.memory_bytes() == 16 * sizeof(uint32_t));
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"splits map each hash to the bucket of its prefix",
       splits_map_each_hash_to_the_bucket_of_its_prefix},
      {"fixed directory is monotonic and even", fixed_directory_is_monotonic_and_even},
      {"words are counted", words_are_counted},
  });
}
