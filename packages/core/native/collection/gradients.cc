#include "collection/gradients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "execution/senders.h"
#include "kernels/key_index.h"
#include "kernels/parallel.h"
#include "kernels/scratch.h"
#include "kernels/simd.h"

namespace sparring::collection {

using execution::bulk;
using execution::bulk_chunked;
using execution::executor_scheduler;
using execution::schedule;
using execution::sync_wait;
using execution::then;

namespace {

template <class T>
int64_t first_id(const FeatureIds<T>& input) {
  return input.offsets != nullptr ? input.offsets[0] : 0;
}

template <class T>
int64_t num_ids(const FeatureIds<T>& input) {
  return input.offsets != nullptr ? input.offsets[input.count] - input.offsets[0] : input.count;
}

template <class T>
bool has_scales(const FeatureIds<T>& input) {
  return input.weights != nullptr || (input.is_mean && input.offsets != nullptr);
}

// What a thread keeps between calls: some 30 bytes an id.
struct Work {
  std::vector<uint32_t> places;   // of the part's ids in the batch
  std::vector<uint32_t> numbers;  // of their keys
  // Open addressing, at most half full. A slot is 0, or 32 bits of the hash and the
  // number of the key plus one: 8 bytes, so that the slots of a large batch stay in
  // the near caches. What the bits cannot tell apart, the keys themselves do.
  std::vector<uint64_t> slots;

  int64_t memory_bytes() const {
    return static_cast<int64_t>((places.capacity() + numbers.capacity()) * sizeof(uint32_t) +
                                slots.capacity() * sizeof(uint64_t));
  }
};

// Room for n elements, whatever they are.
template <class T>
void make_room(std::vector<T>& memory, int64_t n) {
  if (memory.size() < static_cast<size_t>(n)) memory.resize(static_cast<size_t>(n));
}

// Ids from which on dividing the work pays, and the most parts: each thread looks
// at all ids to find its own.
constexpr int64_t kLeastDividedIds = 16'384;
constexpr int64_t kMostParts = 8;
constexpr int64_t kAhead = 12;

int64_t num_parts_for(const SparringExecutor* executor, int64_t count) {
  if (kernels::is_serial(executor) || count < kLeastDividedIds) return 1;
  return std::min<int64_t>(executor->concurrency, kMostParts);
}

// The ids of one part, and the keys that they come to.
template <class T>
class Part {
 public:
  // Finds the ids whose hashes belong to `part` of `num_parts`, in the order of the
  // batch. Equal ids have equal hashes, so parts share no key.
  void choose(const int64_t* ids, int64_t count, uint64_t part, uint64_t num_parts) {
    make_room(work_->places, count);
    uint32_t* places = work_->places.data();
    __extension__ using Wide = unsigned __int128;
    // Written whether chosen or not: a branch here would be foretold wrongly.
    for (int64_t i = 0; i < count; ++i) {
      places[count_] = static_cast<uint32_t>(i);
      const uint64_t hash = hasher_.hash(ids[i]);
      // The low bits choose the slot, so the high ones choose the part.
      count_ += static_cast<uint64_t>((static_cast<Wide>(hash) * num_parts) >> 64) == part;
    }
  }

  // Numbers the keys from 0 in the order in which they come, and counts the ids of each.
  void number(const int64_t* ids) {
    make_room(work_->numbers, count_);
    const uint64_t num_slots = std::bit_ceil(static_cast<uint64_t>(2 * count_) | 1);
    work_->slots.assign(num_slots, 0);
    uint64_t* const slots = work_->slots.data();
    const uint64_t mask = num_slots - 1;
    const uint32_t* const places = work_->places.data();
    uint32_t* const numbers = work_->numbers.data();
    keys_ = std::make_unique_for_overwrite<int64_t[]>(static_cast<size_t>(count_) + 1);
    ends_ = std::make_unique_for_overwrite<uint32_t[]>(static_cast<size_t>(count_) + 1);
    uint32_t num_keys = 0;
    for (int64_t i = 0; i < count_; ++i) {
      if (i + kAhead < count_) {
        __builtin_prefetch(slots + (hasher_.hash(ids[places[i + kAhead]]) & mask), 1);
      }
      const int64_t id = ids[places[i]];
      const uint64_t hash = hasher_.hash(id);
      const uint64_t tag = (hash >> 16) << 32;
      uint64_t at = hash & mask;
      uint32_t number;
      for (;; at = (at + 1) & mask) {
        const uint64_t slot = slots[at];
        if (slot == 0) {
          number = num_keys++;
          slots[at] = tag | num_keys;
          keys_[number] = id;
          ends_[number] = 0;
          break;
        }
        number = static_cast<uint32_t>(slot) - 1;
        if ((slot & ~uint64_t{0xffffffff}) == tag && keys_[number] == id) break;
      }
      numbers[i] = number;
      ++ends_[number];
    }
    num_keys_ = num_keys;
  }

  // Deals the sources out, from `first_source` of the whole on, and says where each key's begin.
  void deal(const std::vector<FeatureGradient<T>>& features, const T** sources, T* scales,
            int64_t first_source, int64_t* keys, int64_t* starts) {
    uint32_t next = 0;
    for (int64_t key = 0; key < num_keys_; ++key) {
      keys[key] = keys_[key];
      starts[key] = first_source + next;
      const uint32_t num_sources = ends_[key];
      most_sources_ = std::max<int64_t>(most_sources_, num_sources);
      ends_[key] = next;
      next += num_sources;
    }
    const uint32_t* places = work_->places.data();
    const uint32_t* numbers = work_->numbers.data();
    int64_t i = 0;
    int64_t before = 0;  // ids of the features already dealt out
    for (const FeatureGradient<T>& feature : features) {
      const FeatureIds<T>& input = feature.input;
      const int64_t first = first_id(input);
      const int64_t end = before + num_ids(input);
      int64_t bag = 0;
      for (; i < count_ && places[i] < end; ++i) {
        const int64_t id = places[i] - before + first;
        if (input.offsets == nullptr) {
          bag = id;
        } else {
          while (input.offsets[bag + 1] <= id) ++bag;
        }
        const int64_t place = first_source + ends_[numbers[i]]++;
        sources[place] = feature.gradient + bag * feature.stride;
        if (scales == nullptr) continue;
        const T share = input.is_mean && input.offsets != nullptr
                            ? T{1} / static_cast<T>(input.offsets[bag + 1] - input.offsets[bag])
                            : T{1};
        const T scale = input.weights != nullptr ? input.weights[id] * share : share;
        scales[place] = scale;
        // A comparison with NaN is false, so NaN gets in and stays.
        if (!(std::abs(scale) <= largest_scale_) && largest_scale_ == largest_scale_) {
          largest_scale_ = std::abs(scale);
        }
      }
      before = end;
    }
  }

  int64_t count() const { return count_; }
  int64_t num_keys() const { return num_keys_; }
  int64_t most_sources() const { return most_sources_; }
  T largest_scale() const { return largest_scale_; }

 private:
  kernels::Scratch<Work> work_;
  const kernels::KeyIndex hasher_;
  std::unique_ptr<int64_t[]> keys_;
  std::unique_ptr<uint32_t[]> ends_;  // of each key: its ids, then where its next source goes
  int64_t count_ = 0;
  int64_t num_keys_ = 0;
  int64_t most_sources_ = 0;
  T largest_scale_ = 1;
};

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
  grouped.sources = std::make_unique_for_overwrite<const T*[]>(size);
  if (is_scaled) grouped.scales = std::make_unique_for_overwrite<T[]>(size);

  const int64_t num_parts = num_parts_for(executor, count);
  std::vector<Part<T>> parts(static_cast<size_t>(num_parts));
  std::vector<int64_t> first_keys(parts.size());
  std::vector<int64_t> first_sources(parts.size());
  auto find_keys = [&](int64_t part) {
    Part<T>& each = parts[static_cast<size_t>(part)];
    each.choose(ids, count, static_cast<uint64_t>(part), static_cast<uint64_t>(num_parts));
    each.number(ids);
  };
  auto lay_out = [&] {
    int64_t num_sources = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      first_keys[i] = grouped.num_keys;
      first_sources[i] = num_sources;
      grouped.num_keys += parts[i].num_keys();
      num_sources += parts[i].count();
    }
    const auto num_keys = static_cast<size_t>(grouped.num_keys);
    grouped.keys = std::make_unique_for_overwrite<int64_t[]>(num_keys);
    grouped.starts = std::make_unique_for_overwrite<int64_t[]>(num_keys + 1);
    grouped.starts[num_keys] = count;
  };
  auto deal = [&](int64_t part) {
    const auto i = static_cast<size_t>(part);
    parts[i].deal(features, grouped.sources.get(), grouped.scales.get(), first_sources[i],
                  grouped.keys.get() + first_keys[i], grouped.starts.get() + first_keys[i]);
  };
  sync_wait(schedule(executor_scheduler(executor)) | bulk(num_parts, find_keys) | then(lay_out) |
            bulk(num_parts, deal));
  for (const Part<T>& part : parts) {
    grouped.most_sources = std::max(grouped.most_sources, part.most_sources());
    if (!(part.largest_scale() <= grouped.largest_scale) &&
        grouped.largest_scale == grouped.largest_scale) {
      grouped.largest_scale = part.largest_scale();
    }
  }
  return grouped;
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
      loops.sum_by_key({grouped.sources.get(), grouped.scales.get(), grouped.starts.get(), positions,
                        out + at * dim, part, dim});
    }
  };
  const int64_t grain = kernels::grain_for(2 * dim * static_cast<int64_t>(sizeof(T)));
  sync_wait(schedule(executor_scheduler(executor)) |
            bulk_chunked(grouped.num_keys, grain, sum_keys));
}

template GroupedGradients<float> group(const SparringExecutor*,
                                       const std::vector<FeatureGradient<float>>&);
template GroupedGradients<double> group(const SparringExecutor*,
                                        const std::vector<FeatureGradient<double>>&);
template void sum(const SparringExecutor*, const GroupedGradients<float>&, int64_t, float*);
template void sum(const SparringExecutor*, const GroupedGradients<double>&, int64_t, double*);

}  // namespace sparring::collection
