#include "format/xxh3.h"

#include <thread>

#include "sparring/hash_string.h"

namespace sparring::packed {
namespace {

// After this many blocks, 1 MiB, the thread yields: otherwise threads that run lookups while a file of
// about 100 MiB is hashed would wait for whole time slices of the scheduler.
constexpr uint64_t kBlocksAtOnce = 1024;

}  // namespace

std::string xxh3_128(const void* data, uint64_t size) {
  uint64_t sums[8];
  xxh3::sum_stripes(static_cast<const uint8_t*>(data), size, sums, [](uint64_t block) {
    if (block % kBlocksAtOnce == kBlocksAtOnce - 1) std::this_thread::yield();
  });
  const uint64_t words[2] = {
      xxh3::merged(sums, xxh3::kSecret + xxh3::kSecretBytes - xxh3::kStripe - 11,
                   ~(size * xxh3::kPrime64[1])),
      xxh3::merged(sums, xxh3::kSecret + 11, size * xxh3::kPrime64[0])};
  std::string text;
  for (const uint64_t word : words) {
    for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15];
  }
  return text;
}

}  // namespace sparring::packed
