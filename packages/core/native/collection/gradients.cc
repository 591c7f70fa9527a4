#include "collection/gradients.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/dedup.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::collection {
namespace {

template <class T>
int64_t first_id(const FeatureIds<T>& input) {
  return input.offsets != nullptr ? input.offsets[0] : 0;
}

template <class T>
int64_t num_ids(const FeatureIds<T>& input) {
  return input.offsets != nullptr ? input.offsets[input.count] - input.offsets[0] : input.count;
}

// Calls visit(bag, first id, last id) for every bag.
template <class T, class Visit>
void each_bag(const FeatureIds<T>& input, const Visit& visit) {
  for (int64_t bag = 0; bag < input.count; ++bag) {
    if (input.offsets != nullptr) {
      visit(bag, input.offsets[bag], input.offsets[bag + 1]);
    } else {
      visit(bag, bag, bag + 1);
    }
  }
}

template <class T>
bool has_scales(const FeatureIds<T>& input) {
  return input.weights != nullptr || (input.is_mean && input.offsets != nullptr);
}

}  // namespace

template <class T>
GroupedGradients<T> group(const SparringExecutor* executor,
                          const std::vector<FeatureGradient<T>>& features) {
  GroupedGradients<T> grouped;
  int64_t count = 0;
  bool is_scaled = false;
  for (const FeatureGradient<T>& feature : features) {
    count += num_ids(feature.input);
    is_scaled |= has_scales(feature.input);
  }
  const auto size = static_cast<size_t>(count);
  const int64_t* ids = nullptr;
  std::unique_ptr<int64_t[]> joined;
  if (features.size() == 1) {
    ids = features[0].input.ids + first_id(features[0].input);
  } else {
    joined = std::make_unique_for_overwrite<int64_t[]>(size);
    int64_t* to = joined.get();
    for (const FeatureGradient<T>& feature : features) {
      to = std::copy_n(feature.input.ids + first_id(feature.input), num_ids(feature.input), to);
    }
    ids = joined.get();
  }

  const auto inverse = std::make_unique_for_overwrite<int64_t[]>(size);
  grouped.keys.resize(size);
  grouped.num_keys = kernels::dedup(executor, ids, count, grouped.keys.data(), inverse.get());
  grouped.keys.resize(static_cast<size_t>(grouped.num_keys));

  std::vector<int64_t>& starts = grouped.starts;
  starts.assign(static_cast<size_t>(grouped.num_keys) + 1, 0);
  for (size_t i = 0; i < size; ++i) ++starts[static_cast<size_t>(inverse[i]) + 1];
  for (size_t i = 1; i < starts.size(); ++i) {
    grouped.most_sources = std::max(grouped.most_sources, starts[i]);
    starts[i] += starts[i - 1];
  }

  grouped.sources = std::make_unique_for_overwrite<const T*[]>(size);
  if (is_scaled) grouped.scales = std::make_unique_for_overwrite<T[]>(size);
  // `starts` walks on while the sources are dealt out, and is put back afterwards.
  size_t at = 0;
  for (const FeatureGradient<T>& feature : features) {
    const FeatureIds<T>& input = feature.input;
    each_bag(input, [&](int64_t bag, int64_t first, int64_t last) {
      const T* source = feature.gradient + bag * feature.stride;
      const T share = input.is_mean ? T{1} / static_cast<T>(last - first) : T{1};
      for (int64_t i = first; i < last; ++i, ++at) {
        const auto place = static_cast<size_t>(starts[static_cast<size_t>(inverse[at])]++);
        grouped.sources[place] = source;
        if (!is_scaled) continue;
        const T scale = input.weights != nullptr ? input.weights[i] * share : share;
        grouped.scales[place] = scale;
        // A comparison with NaN is false, so NaN gets in and stays.
        T& largest = grouped.largest_scale;
        if (!(std::abs(scale) <= largest) && largest == largest) largest = std::abs(scale);
      }
    });
  }
  for (size_t i = starts.size() - 1; i > 0; --i) starts[i] = starts[i - 1];
  starts[0] = 0;
  return grouped;
}

template <class T>
void sum(const SparringExecutor* executor, const GroupedGradients<T>& grouped, int64_t dim,
         T* out) {
  const kernels::RowKernels<T>& loops = kernels::row_kernels<T>();
  constexpr int64_t kBlock = 32;
  kernels::parallel_for(
      executor, grouped.num_keys, kernels::grain_for(2 * dim * static_cast<int64_t>(sizeof(T))),
      [&](int64_t begin, int64_t end) {
        int64_t positions[kBlock];
        for (int64_t at = begin; at < end; at += kBlock) {
          const int64_t part = std::min(kBlock, end - at);
          std::iota(positions, positions + part, at);
          loops.sum_by_key({grouped.sources.get(), grouped.scales.get(), grouped.starts.data(),
                            positions, out + at * dim, part, dim});
        }
      });
}

template GroupedGradients<float> group(const SparringExecutor*,
                                       const std::vector<FeatureGradient<float>>&);
template GroupedGradients<double> group(const SparringExecutor*,
                                        const std::vector<FeatureGradient<double>>&);
template void sum(const SparringExecutor*, const GroupedGradients<float>&, int64_t, float*);
template void sum(const SparringExecutor*, const GroupedGradients<double>&, int64_t, double*);

}  // namespace sparring::collection
