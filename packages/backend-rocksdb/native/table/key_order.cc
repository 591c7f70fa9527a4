#include "key_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace sparring::flash {
namespace {

// With fewer keys, clearing the counters costs more than a comparison sort.
constexpr int64_t kFewKeys = 512;

void sort_by_byte(const std::vector<PlacedCode>& from, std::vector<PlacedCode>& to, int shift) {
  std::array<size_t, 256> ends{};
  for (const PlacedCode& each : from) ++ends[each.code >> shift & 0xff];
  size_t begin = 0;
  for (size_t& end : ends) begin += std::exchange(end, begin);
  for (const PlacedCode& each : from) to[ends[each.code >> shift & 0xff]++] = each;
}

}  // namespace

std::vector<PlacedCode> in_order(const int64_t* keys, int64_t count) {
  std::vector<PlacedCode> placed(static_cast<size_t>(count));
  uint64_t differing = 0;
  bool is_sorted = true;
  for (int64_t i = 0; i < count; ++i) {
    placed[static_cast<size_t>(i)] = {code_of(keys[i]), i};
    differing |= code_of(keys[i]) ^ code_of(keys[0]);
    is_sorted = is_sorted && (i == 0 || keys[i - 1] <= keys[i]);
  }
  if (is_sorted) return placed;
  if (count < kFewKeys) {
    std::sort(placed.begin(), placed.end(),
              [](const PlacedCode& a, const PlacedCode& b) { return a.code < b.code; });
    return placed;
  }
  std::vector<PlacedCode> other(placed.size());
  for (int shift = 0; shift < 64; shift += 8) {
    if ((differing >> shift & 0xff) == 0) continue;
    sort_by_byte(placed, other, shift);
    placed.swap(other);
  }
  return placed;
}

}  // namespace sparring::flash
