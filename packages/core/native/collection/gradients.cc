#include "collection/gradients.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "execution/senders.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::collection {

using execution::bulk_chunked;
using execution::executor_scheduler;
using execution::schedule;
using execution::sync_wait;

template <class T>
GroupedGradients<T> lay_out(const SparringExecutor* executor,
                            std::shared_ptr<const TablePlan<T>> plan,
                            const std::vector<FeatureGradient<T>>& gradients) {
  const int64_t count = plan->num_sources();
  auto sources = std::make_unique_for_overwrite<const T*[]>(static_cast<size_t>(count));
  const uint32_t* const slots = plan->slots.get();
  std::vector<uint32_t> first_slots;
  int64_t num_slots = 0;
  for (const FeatureGradient<T>& each : gradients) {
    // A feature without bags has no slots; they belong to the next one.
    first_slots.push_back(static_cast<uint32_t>(num_slots));
    num_slots += each.input.count;
  }
  auto point = [&](int64_t begin, int64_t end) {
    if (gradients.size() == 1) {
      const FeatureGradient<T> only = gradients[0];
      for (int64_t i = begin; i < end; ++i) sources[i] = only.gradient + slots[i] * only.stride;
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      const auto after = std::upper_bound(first_slots.begin(), first_slots.end(), slots[i]);
      const auto feature = static_cast<size_t>(after - first_slots.begin()) - 1;
      const FeatureGradient<T>& its = gradients[feature];
      sources[i] = its.gradient + (slots[i] - first_slots[feature]) * its.stride;
    }
  };
  const int64_t grain = kernels::grain_for(static_cast<int64_t>(2 * sizeof(T*)));
  sync_wait(schedule(executor_scheduler(executor)) | bulk_chunked(count, grain, point));
  return {std::move(plan), std::move(sources)};
}

template <class T>
GroupedGradients<T> group(const SparringExecutor* executor,
                          const std::vector<FeatureGradient<T>>& gradients) {
  std::vector<FeatureIds<T>> features;
  for (const FeatureGradient<T>& each : gradients) features.push_back(each.input);
  auto plan =
      std::make_shared<const TablePlan<T>>(make_plan(executor, std::move(features), false));
  return lay_out<T>(executor, std::move(plan), gradients);
}

template <class T>
void sum(const SparringExecutor* executor, const GroupedGradients<T>& grouped, int64_t dim,
         T* out) {
  const kernels::RowKernels<T>& loops = kernels::row_kernels<T>();
  constexpr int64_t kBlock = 32;
  auto sum_keys = [&](int64_t begin, int64_t end) {
    int64_t positions[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t part = std::min(kBlock, end - at);
      std::iota(positions, positions + part, at);
      loops.sum_by_key({grouped.sources.get(), grouped.plan->scales.get(), grouped.plan->starts.get(), positions,
                        out + at * dim, part, dim, grouped.plan->num_sources()});
    }
  };
  const int64_t grain = kernels::grain_for(2 * dim * static_cast<int64_t>(sizeof(T)));
  sync_wait(schedule(executor_scheduler(executor)) |
            bulk_chunked(grouped.plan->num_keys, grain, sum_keys));
}

template GroupedGradients<float> lay_out(const SparringExecutor*,
                                         std::shared_ptr<const TablePlan<float>>,
                                         const std::vector<FeatureGradient<float>>&);
template GroupedGradients<double> lay_out(const SparringExecutor*,
                                          std::shared_ptr<const TablePlan<double>>,
                                          const std::vector<FeatureGradient<double>>&);
template GroupedGradients<float> group(const SparringExecutor*,
                                       const std::vector<FeatureGradient<float>>&);
template GroupedGradients<double> group(const SparringExecutor*,
                                        const std::vector<FeatureGradient<double>>&);
template void sum(const SparringExecutor*, const GroupedGradients<float>&, int64_t, float*);
template void sum(const SparringExecutor*, const GroupedGradients<double>&, int64_t, double*);

}  // namespace sparring::collection
