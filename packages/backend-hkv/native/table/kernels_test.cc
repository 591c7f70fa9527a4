// All kernels that this processor can run must agree, to the byte, with each
// other and with what was written.
#include "kernels.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "client.h"
#include "colliding_keys.h"
#include "match.h"
#include "thread_executor.h"

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
  for (int64_t key = 1; key < 3000; ++key) keys.push_back(key * 7);
  return keys;
}

void kernels_agree_for_any_row_size() {
  const Keys keys = some_keys();
  const std::set<int64_t> known(keys.begin(), keys.end());
  Keys asked = keys;
  for (int64_t key = 1; key < 3000; ++key) asked.push_back(key * 7 + 1);
  std::mt19937_64 random(5);
  std::shuffle(asked.begin(), asked.end(), random);
  for (const uint64_t row_bytes : {1, 3, 4, 8, 12, 16, 20, 31, 32, 33, 60, 63, 64, 65, 100, 256,
                                   260, 1000, 4096}) {
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

// Large aligned outputs are written past the caches, by other instructions.
void large_outputs_are_right_whatever_their_alignment() {
  constexpr uint64_t kRowBytes = 256;
  constexpr size_t kCount = 40'000;
  ThreadExecutor executor(2);
  Keys keys;
  for (size_t i = 0; i < kCount; ++i) keys.push_back(static_cast<int64_t>(i * i));
  for (const Kernels* kernels : available_kernels()) {
    Client client({.row_bytes = kRowBytes}, executor.get(), kernels);
    CHECK(client.upsert(keys, 2) == SPARRING_OK);
    Keys asked = keys;
    for (size_t i = 0; i < kCount; i += 3) asked[i] = -asked[i] - 1;
    std::vector<char> memory(kCount * kRowBytes + 128);
    std::vector<uint8_t> found(kCount);
    for (const uint64_t offset : {0, 4, 16, 48}) {
      for (const SparringColumns columns : {SparringColumns{0, 256}, SparringColumns{64, 192}}) {
        const uint64_t bytes = columns.end - columns.begin;
        char* aligned = memory.data() + 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
        char* rows = aligned + offset;
        std::fill(memory.begin(), memory.end(), 'x');
        auto arguments = client.arguments<SparringFind>();
        arguments.count = kCount;
        arguments.keys = asked.data();
        arguments.columns = columns;
        arguments.rows = rows;
        arguments.row_stride = bytes;
        arguments.found = found.data();
        CHECK(client.call(client.get()->find, arguments) == SPARRING_OK);
        for (size_t i = 0; i < kCount; ++i) {
          CHECK(found[i] == (i % 3 == 0 ? 0 : 1));
          const Bytes row = i % 3 == 0 ? Bytes(kRowBytes, 0) : make_row(keys[i], 2, kRowBytes);
          CHECK(std::memcmp(rows + i * bytes, row.data() + columns.begin, bytes) == 0);
        }
        CHECK(rows[-1] == 'x' && rows[kCount * bytes] == 'x');
      }
    }
  }
}

}  // namespace

int main() {
  for (const Kernels* kernels : available_kernels()) std::printf("kernels: %s\n", kernels->name);
  RUN(digest_scans_agree);
  RUN(kernels_agree_for_any_row_size);
  RUN(large_outputs_are_right_whatever_their_alignment);
}
