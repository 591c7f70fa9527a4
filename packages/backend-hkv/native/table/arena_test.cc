#include "arena.h"

#include <cstring>
#include <new>

#include "check.h"

using namespace sparring::hkv;

namespace {

void elements_keep_their_addresses_and_bytes_while_it_grows() {
  for (const uint64_t element_bytes : {uint64_t{4}, uint64_t{260}, uint64_t{832}, uint64_t{5000}}) {
    Arena arena(element_bytes, 1u << 30);
    const uint64_t count = (uint64_t{150} << 20) / element_bytes;
    arena.commit(1);
    char* const first = arena.at(0);
    for (uint64_t i = 0; i < count; i += 1 + count / 1000) {
      arena.commit(i + 1);
      for (uint64_t byte = 0; byte < element_bytes; ++byte) {
        CHECK(arena.at(static_cast<uint32_t>(i))[byte] == 0);
      }
      std::memset(arena.at(static_cast<uint32_t>(i)), static_cast<int>(i % 251), element_bytes);
    }
    CHECK(arena.at(0) == first);
    for (uint64_t i = 0; i < count; i += 1 + count / 1000) {
      const char expected = static_cast<char>(i % 251);
      CHECK(arena.at(static_cast<uint32_t>(i))[0] == expected);
      CHECK(arena.at(static_cast<uint32_t>(i))[element_bytes - 1] == expected);
    }
  }
}

void small_arena_is_small_and_waste_is_bounded() {
  Arena arena(256, 1u << 30);
  arena.commit(10);
  CHECK(arena.memory_bytes() <= 8192);
  for (uint64_t count = 10; count < 1'000'000; count += 777) {
    arena.commit(count);
    const uint64_t payload = count * 256;
    CHECK(arena.memory_bytes() <= 2 * payload + 8192);
    CHECK(arena.memory_bytes() <= payload + (uint64_t{2} << 20) + 8192);
  }
}

void memory_stays_within_the_bytes_for_the_limit() {
  for (const uint64_t element_bytes : {uint64_t{4}, uint64_t{100}, uint64_t{832}, uint64_t{70'001}}) {
    for (const uint64_t limit : {uint64_t{1}, uint64_t{7}, uint64_t{1000}, uint64_t{3000}}) {
      Arena arena(element_bytes, limit);
      for (uint64_t count = 1; count <= limit; ++count) {
        arena.commit(count);
        CHECK(arena.memory_bytes() <= Arena::bytes_for(element_bytes, limit));
      }
      arena.at(static_cast<uint32_t>(limit - 1))[element_bytes - 1] = 1;
    }
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"elements keep their addresses and bytes while it grows",
       elements_keep_their_addresses_and_bytes_while_it_grows},
      {"small arena is small and waste is bounded", small_arena_is_small_and_waste_is_bounded},
      {"memory stays within the bytes for the limit",
       memory_stays_within_the_bytes_for_the_limit},
  });
}
