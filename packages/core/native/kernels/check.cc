#include "kernels/check.h"

#include <algorithm>

namespace sparring::kernels {

int64_t first_out_of_range(const int64_t* indices, int64_t count, int64_t limit) {
  const auto bound = static_cast<uint64_t>(std::max<int64_t>(0, limit));
  // As unsigned numbers, negative indices are large ones. Looking for the place
  // only where a block holds one keeps the loop free of branches.
  constexpr int64_t kCheckBlock = 1024;
  for (int64_t begin = 0; begin < count; begin += kCheckBlock) {
    const int64_t end = std::min(count, begin + kCheckBlock);
    uint64_t num_bad = 0;
    for (int64_t i = begin; i < end; ++i) num_bad += static_cast<uint64_t>(indices[i]) >= bound;
    if (num_bad == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (static_cast<uint64_t>(indices[i]) >= bound) return i;
    }
  }
  return -1;
}

int64_t first_bad_offset(const int64_t* offsets, int64_t num_bags, int64_t count) {
  if (offsets[0] != 0) return 0;
  for (int64_t i = 1; i <= num_bags; ++i) {
    if (offsets[i] < offsets[i - 1]) return i;
  }
  return offsets[num_bags] == count ? -1 : num_bags;
}

}  // namespace sparring::kernels
