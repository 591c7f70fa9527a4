// All kernels that this processor supports must agree byte for byte with each
// other and with the written data.
#include "kernels.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "client.h"
#include "colliding_keys.h"
#include "index.h"
#include "match.h"
#include "pool.h"

using namespace sparring::hkv;
using namespace sparring::hkv::testing;

namespace {

void digest_scans_agree() {
  std::mt19937_64 random(4);
  alignas(64) Bucket bucket{};
  for (int round = 0; round < 2000; ++round) {
    for (uint8_t& digest : bucket.digests) digest = static_cast<uint8_t>(random() % 5 * 63);
    bucket.overflow = static_cast<uint32_t>(random());
    for (int digest = 0; digest < 256; ++digest) {
      uint64_t expected = 0;
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        if (bucket.digests[slot] == digest) expected |= uint64_t{1} << slot;
      }
      CHECK(match_words(&bucket, static_cast<uint8_t>(digest)) == expected);
      CHECK(match_digest(&bucket, static_cast<uint8_t>(digest)) == expected);
    }
  }
}

Keys some_keys() {
  Keys keys = colliding_keys(50, 40);
  for (const int64_t key : {INT64_MIN, INT64_MAX, int64_t{0}, int64_t{-1}}) keys.push_back(key);
  for (int64_t key = 1; key < 800; ++key) keys.push_back(key * 7);
  return keys;
}

void kernels_agree_for_any_row_size() {
  const Keys keys = some_keys();
  const std::set<int64_t> known(keys.begin(), keys.end());
  Keys asked = keys;
  for (int64_t key = 1; key < 800; ++key) asked.push_back(key * 7 + 1);
  std::mt19937_64 random(5);
  std::shuffle(asked.begin(), asked.end(), random);
  for (const uint64_t row_bytes : {1, 3, 4, 8, 12, 20, 31, 33, 63, 64, 65, 128, 256, 260, 512,
                                   1000, 4096}) {
    for (const int64_t capacity : {int64_t{-1}, int64_t{100'000}}) {
      std::vector<std::vector<Bytes>> results;
      std::vector<Rows> scans;
      for (const Kernels* kernels : available_kernels()) {
        Client client({.row_bytes = row_bytes, .capacity = capacity, .policy = PolicyKind::kLfu},
                      nullptr, kernels);
        CHECK(client.upsert(keys, 1) == SPARRING_OK);
        CHECK(client.touch(asked) == SPARRING_OK);
        results.push_back(client.find(asked));
        scans.push_back(client.scan());
      }
      for (size_t i = 0; i < asked.size(); ++i) {
        CHECK(results[0][i] == (known.count(asked[i]) == 1 ? make_row(asked[i], 1, row_bytes) : Bytes()));
      }
      for (size_t other = 1; other < results.size(); ++other) {
        CHECK(results[other] == results[0] && scans[other] == scans[0]);
      }
    }
  }
}

// Large outputs are written with streaming stores.
void large_outputs_of_any_alignment_are_correct() {
  constexpr uint64_t kRowBytes = 256;
  constexpr size_t kCount = 5000;
  Keys keys;
  Index index({});
  Pool rows(kRowBytes, kCount, 0);
  for (size_t i = 0; i < kCount; ++i) {
    keys.push_back(static_cast<int64_t>(i * i));
    const uint32_t row = rows.allocate();
    index.insert(keys[i], index.hash(keys[i]), row, 0);
    std::memcpy(rows.at(row), make_row(keys[i], 2, kRowBytes).data(), kRowBytes);
  }
  for (size_t i = 1; i < kCount; i += 3) keys[i] = -keys[i];
  std::vector<char> memory(kCount * kRowBytes + 192);
  std::vector<uint8_t> found(kCount);
  for (const Kernels* kernels : available_kernels()) {
    for (const uint64_t offset : {0, 4, 16, 48}) {
      for (const SparringColumns columns : {SparringColumns{0, 256}, SparringColumns{64, 192},
                                            SparringColumns{32, 64}, SparringColumns{4, 68}}) {
        const uint64_t bytes = columns.end - columns.begin;
        char* out =
            memory.data() + 128 - reinterpret_cast<uintptr_t>(memory.data()) % 64 + offset;
        std::fill(memory.begin(), memory.end(), 'x');
        const RowOutput output{rows.view(), columns.begin, columns.end, out, bytes, true,
                               false};
        kernels->find(index.view(), output, keys.data(), kCount, found.data());
        for (size_t i = 0; i < kCount; ++i) {
          const bool is_known = i % 3 != 1;
          CHECK(found[i] == (is_known ? 1 : 0));
          const Bytes row = is_known ? make_row(keys[i], 2, kRowBytes) : Bytes(kRowBytes, 0);
          CHECK(std::memcmp(out + i * bytes, row.data() + columns.begin, bytes) == 0);
        }
        CHECK(out[-1] == 'x' && out[kCount * bytes] == 'x');
      }
    }
  }
}

// For any fraction of existing keys, in buckets with and without chains.
void mixed_keys_are_found_like_others() {
  constexpr uint64_t kRowBytes = 64;
  constexpr size_t kCount = 4000;
  for (const uint64_t num_fixed_buckets : {Directory::kGrowing, uint64_t{8}, uint64_t{100}}) {
    Index::Options options;
    options.num_fixed_buckets = num_fixed_buckets;
    Index index(options);
    Pool rows(kRowBytes, kCount, 0);
    for (int64_t key = 0; key < static_cast<int64_t>(kCount); ++key) {
      const uint32_t row = rows.allocate();
      index.insert(key, index.hash(key), row, 0);
      std::memcpy(rows.at(row), make_row(key, 2, kRowBytes).data(), kRowBytes);
    }
    for (const size_t known_of_ten : {0, 1, 5, 9, 10}) {
      Keys keys(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        // Includes missing keys near the limits of int64.
        const auto key = static_cast<int64_t>(i);
        const int64_t absent = i % 2 == 0 ? INT64_MIN + key : INT64_MAX - key;
        keys[i] = i * 7 % 10 < known_of_ten ? key : absent;
      }
      for (const Kernels* kernels : available_kernels()) {
        std::vector<char> out(kCount * kRowBytes, 'x');
        std::vector<uint8_t> found(kCount, 7);
        const RowOutput output{rows.view(), 0, kRowBytes, out.data(), kRowBytes, false, true};
        kernels->find(index.view(), output, keys.data(), kCount, found.data());
        for (size_t i = 0; i < kCount; ++i) {
          const bool is_known = i * 7 % 10 < known_of_ten;
          CHECK(found[i] == (is_known ? 1 : 0));
          const Bytes row = is_known ? make_row(keys[i], 2, kRowBytes) : Bytes(kRowBytes, 0);
          CHECK(std::memcmp(out.data() + i * kRowBytes, row.data(), kRowBytes) == 0);
        }
      }
    }
  }
}

// If no digest matches, digests are read in place of a key and must not be taken for it.
void digests_are_no_keys() {
  constexpr int64_t kKey = 0;  // equal to the digests of eight empty slots
  constexpr uint64_t kRowBytes = 8;
  for (const uint64_t num_fixed_buckets : {Directory::kGrowing, uint64_t{1}}) {
    Index::Options options;
    options.num_fixed_buckets = num_fixed_buckets;
    const Index index(options);
    Pool rows(kRowBytes, 1, 0);
    rows.allocate();  // the row that they would refer to
    for (const Kernels* kernels : available_kernels()) {
      Bytes out(kRowBytes, 'x');
      uint8_t found = 7;
      const RowOutput output{rows.view(), 0, kRowBytes, out.data(), kRowBytes, false, true};
      kernels->find(index.view(), output, &kKey, 1, &found);
      CHECK(found == 0);
      CHECK(out == Bytes(kRowBytes, 0));
    }
  }
}

}  // namespace

int main() {
  for (const Kernels* kernels : available_kernels()) std::printf("kernels: %s\n", kernels->name);
  return sparring::testing::run({
      {"digest scans agree", digest_scans_agree},
      {"kernels agree for any row size", kernels_agree_for_any_row_size},
      {"large outputs of any alignment are correct",
       large_outputs_of_any_alignment_are_correct},
      {"mixed keys are found like others", mixed_keys_are_found_like_others},
      {"digests are no keys", digests_are_no_keys},
  });
}
