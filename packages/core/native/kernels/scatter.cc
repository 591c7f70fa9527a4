#include "kernels/scatter.h"

#include <algorithm>
#include <cstring>

#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

// With two threads, reading all targets twice and sharing the cache cancel the gain.
constexpr int kLeastThreads = 3;

// Occurrences that are collected before they are added.
constexpr int64_t kCollected = 1024;

// Every part reads all targets, so more parts than this would mostly read.
constexpr int64_t kMostParts = 16;

// The part of a row of `out`. Blocks of rows are distributed over parts, because neighboring
// rows share cache lines. Parts are not contiguous, because the first keys of a batch are
// the frequent ones, and one thread should not get all of them.
class Parts {
 public:
  Parts(int64_t num_parts, int64_t row_bytes)
      : num_parts_(static_cast<uint64_t>(num_parts)),
        block_bits_(row_bytes >= 1024 ? 0 : row_bytes >= 128 ? 3 : 8) {}

  int64_t of(int64_t target) const {
    // The block, scaled to 32 bits, gives the part without a division.
    const auto spread = static_cast<uint32_t>((target >> block_bits_) * 0x9E3779B1);
    return static_cast<int64_t>((spread * num_parts_) >> 32);
  }

 private:
  uint64_t num_parts_;
  int block_bits_;
};

// Sums the rows of `out` in one part. Each row is in one part, whose thread processes the
// occurrences of the row in order.
template <class T>
void scatter_part(const ScatterArguments<T>& arguments, const Parts& parts, int64_t part) {
  const RowKernels<T>& kernels = row_kernels<T>();
  const bool is_scaled = arguments.weights != nullptr || arguments.is_mean;
  const int64_t* offsets = arguments.offsets;
  ScatterEntry entries[kCollected];
  T scales[kCollected];
  int64_t num_entries = 0;
  const auto flush = [&] {
    kernels.scatter_entries(arguments, entries, is_scaled ? scales : nullptr, num_entries);
    num_entries = 0;
  };
  for (int64_t bag = 0; bag < arguments.num_bags; ++bag) {
    const int64_t first = offsets != nullptr ? offsets[bag] : bag;
    const int64_t last = offsets != nullptr ? offsets[bag + 1] : bag + 1;
    const T share = arguments.is_mean ? T{1} / static_cast<T>(last - first) : T{1};
    for (int64_t i = first; i < last; ++i) {
      const int64_t target = arguments.targets[i];
      // Written for every occurrence and kept if it is in this part, because a branch would
      // be mispredicted.
      entries[num_entries] = {static_cast<uint32_t>(target), static_cast<uint32_t>(bag)};
      if (is_scaled) {
        scales[num_entries] =
            arguments.weights != nullptr ? arguments.weights[i] * share : share;
      }
      num_entries += parts.of(target) == part;
      if (num_entries == kCollected) flush();
    }
  }
  flush();
}

template <class T>
void scatter_parallel(const SparringExecutor* executor, const ScatterArguments<T>& arguments) {
  const int64_t row_bytes = arguments.dim * static_cast<int64_t>(sizeof(T));
  parallel_for(executor, arguments.num_rows, grain_for(row_bytes), [&](int64_t begin, int64_t end) {
    std::memset(arguments.out + begin * arguments.dim, 0,
                static_cast<size_t>((end - begin) * row_bytes));
  });
  const int64_t num_parts = std::min<int64_t>(executor->concurrency, kMostParts);
  const Parts parts(num_parts, row_bytes);
  parallel_for(executor, num_parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) scatter_part(arguments, parts, part);
  });
}

}  // namespace

template <class T>
void scatter(const SparringExecutor* executor, const ScatterArguments<T>& arguments) {
  const int64_t row_bytes = arguments.dim * static_cast<int64_t>(sizeof(T));
  const bool has_threads = executor != nullptr && executor->concurrency >= kLeastThreads;
  if (has_threads && arguments.count * row_bytes >= 4 * kPieceBytes) {
    scatter_parallel(executor, arguments);
    return;
  }
  std::fill_n(arguments.out, arguments.num_rows * arguments.dim, T{0});
  row_kernels<T>().scatter(arguments, 0, arguments.num_bags);
}

template void scatter(const SparringExecutor*, const ScatterArguments<float>&);
template void scatter(const SparringExecutor*, const ScatterArguments<double>&);

}  // namespace sparring::kernels
