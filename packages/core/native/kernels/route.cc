#include "kernels/route.h"

#include <numeric>

#include "kernels/parallel.h"
#include "kernels/radix.h"
#include "sparring/initial_value.h"

namespace sparring::kernels {
namespace {

// Minimum number of keys that one piece of a parallel loop should hash.
constexpr int64_t kGrainKeys = 32768;

}  // namespace

void partition(const SparringExecutor* executor, const int64_t* keys, int64_t count,
               uint16_t* partitions) {
  parallel_for(executor, count, kGrainKeys, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      partitions[i] = static_cast<uint16_t>(partition_of(keys[i]));
    }
  });
}

void route(const SparringExecutor* executor, const RouteArguments& arguments) {
  const auto [keys, count, owners, world_size, order, offsets] = arguments;
  if (world_size == 1) {
    std::iota(order, order + count, int64_t{0});
    offsets[0] = 0;
    offsets[1] = count;
    return;
  }
  const auto owner_of = [keys = keys, owners = owners](int64_t i) {
    return owners[partition_of(keys[i])];
  };
  // Capturing structured bindings by reference is beyond some C++20 compilers.
  int64_t* const order_out = order;
  const SparringExecutor* lent = count < 2 * kGrainKeys ? nullptr : executor;
  const std::vector<int64_t> begins = radix_split(
      lent, Chunks::of(lent, count), world_size,
      [&](int64_t begin, int64_t end, int64_t* counts) {
        for (int64_t i = begin; i < end; ++i) ++counts[owner_of(i)];
      },
      [&](int64_t begin, int64_t end, int64_t* next) {
        for (int64_t i = begin; i < end; ++i) order_out[next[owner_of(i)]++] = i;
      });
  std::copy(begins.begin(), begins.end(), offsets);
}

}  // namespace sparring::kernels
