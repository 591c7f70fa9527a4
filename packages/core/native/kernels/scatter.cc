#include "kernels/scatter.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/parallel.h"
#include "kernels/radix.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

// Occurrences in one part of the parallel path.
constexpr int64_t kPartOccurrences = 2048;

// Splits the occurrences by target, so that each row of `out` has one writer, which
// meets its occurrences in their order. Targets go to parts in blocks: neighbouring
// rows share cache lines and pages, but in a batch the frequent keys are the first
// ones, and these should not all fall to one thread.
template <class T>
void scatter_parallel(const SparringExecutor* executor, const ScatterArguments<T>& arguments) {
  const RowKernels<T>& kernels = row_kernels<T>();
  const int64_t row_bytes = arguments.dim * static_cast<int64_t>(sizeof(T));
  const int64_t num_parts = num_parts_for(arguments.count, kPartOccurrences);
  const int block_bits = row_bytes >= 1024 ? 0 : row_bytes >= 128 ? 3 : 8;
  const auto part_of = [=](int64_t target) { return (target >> block_bits) & (num_parts - 1); };
  const bool is_scaled = arguments.weights != nullptr || arguments.is_mean;

  const auto size = static_cast<size_t>(arguments.count);
  const auto entries = std::make_unique_for_overwrite<ScatterEntry[]>(size);
  const auto scales = std::make_unique_for_overwrite<T[]>(is_scaled ? size : 0);
  const int64_t* targets = arguments.targets;
  const int64_t* offsets = arguments.offsets;

  const auto place_bags = [&](int64_t begin, int64_t end, int64_t* next) {
    // The last bag that begins at or before `begin`; empty ones before it hold nothing.
    int64_t bag = begin;
    if (offsets != nullptr) {
      bag = std::upper_bound(offsets, offsets + arguments.num_bags + 1, begin) - offsets - 1;
    }
    for (int64_t i = begin; i < end; ++bag) {
      const int64_t first = offsets != nullptr ? offsets[bag] : bag;
      const int64_t last = offsets != nullptr ? offsets[bag + 1] : bag + 1;
      const T share = arguments.is_mean ? T{1} / static_cast<T>(last - first) : T{1};
      for (; i < std::min(last, end); ++i) {
        const auto to = static_cast<size_t>(next[part_of(targets[i])]++);
        entries[to] = {static_cast<uint32_t>(targets[i]), static_cast<uint32_t>(bag)};
        if (!is_scaled) continue;
        scales[to] = arguments.weights != nullptr ? arguments.weights[i] * share : share;
      }
    }
  };
  const std::vector<int64_t> begins = radix_split(
      executor, Chunks::of(executor, arguments.count), num_parts,
      [&](int64_t begin, int64_t end, int64_t* counts) {
        for (int64_t i = begin; i < end; ++i) ++counts[part_of(targets[i])];
      },
      place_bags);

  parallel_for(executor, arguments.num_rows, grain_for(row_bytes), [&](int64_t begin, int64_t end) {
    std::memset(arguments.out + begin * arguments.dim, 0,
                static_cast<size_t>((end - begin) * row_bytes));
  });
  parallel_for(executor, num_parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = begins[static_cast<size_t>(part)];
      kernels.scatter_entries(arguments, entries.get() + begin,
                              is_scaled ? scales.get() + begin : nullptr,
                              begins[static_cast<size_t>(part) + 1] - begin);
    }
  });
}

}  // namespace

template <class T>
void scatter(const SparringExecutor* executor, const ScatterArguments<T>& arguments) {
  const int64_t row_bytes = arguments.dim * static_cast<int64_t>(sizeof(T));
  if (!is_serial(executor) && arguments.count * row_bytes >= 4 * kPieceBytes) {
    scatter_parallel(executor, arguments);
    return;
  }
  std::fill_n(arguments.out, arguments.num_rows * arguments.dim, T{0});
  row_kernels<T>().scatter(arguments, 0, arguments.num_bags);
}

template void scatter(const SparringExecutor*, const ScatterArguments<float>&);
template void scatter(const SparringExecutor*, const ScatterArguments<double>&);

}  // namespace sparring::kernels
