#include "collection/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "abi/storage_handle.h"
#include "execution/senders.h"
#include "kernels/dedup.h"
#include "kernels/key_index.h"
#include "kernels/parallel.h"
#include "kernels/scratch.h"

namespace sparring::collection {

using execution::bulk;
using execution::bulk_chunked;
using execution::executor_scheduler;
using execution::schedule;
using execution::sync_wait;
using execution::then;

namespace {

template <class T>
bool has_scales(const FeatureIds<T>& input) {
  return input.weights != nullptr || (input.is_mean && input.offsets != nullptr);
}

// Memory that a thread keeps between calls: about 30 bytes per id.
struct Work {
  std::vector<uint32_t> places;   // of the part's ids in the batch
  std::vector<uint32_t> numbers;  // of their keys
  // Open addressing, at most two thirds full. A slot is 0, or 32 bits of the hash and the
  // number of the key plus one: 8 bytes, so that the slots of a large batch stay in
  // the nearest caches. If the bits are equal, the keys are compared.
  std::vector<uint64_t> slots;

  int64_t memory_bytes() const {
    return static_cast<int64_t>((places.capacity() + numbers.capacity()) * sizeof(uint32_t) +
                                slots.capacity() * sizeof(uint64_t));
  }
};

// Uninitialized memory for n elements.
template <class T>
void make_room(std::vector<T>& memory, int64_t n) {
  if (memory.size() < static_cast<size_t>(n)) memory.resize(static_cast<size_t>(n));
}

// Number of ids from which splitting the work is faster, and maximum number of parts. Each
// thread reads all ids to find its own ones.
constexpr int64_t kLeastDividedIds = 16'384;
constexpr int64_t kMostParts = 8;
constexpr int64_t kAhead = 24;

int64_t num_parts_for(const SparringExecutor* executor, int64_t count) {
  if (kernels::is_serial(executor) || count < kLeastDividedIds) return 1;
  return std::min<int64_t>(executor->concurrency, kMostParts);
}

// The ids of one part, and their keys.
template <class T>
class Part {
 public:
  // Finds the ids whose hashes belong to `part` of `num_parts`, in the order of the
  // batch. Equal ids have equal hashes, so parts share no key.
  void choose(const int64_t* ids, int64_t count, uint64_t part, uint64_t num_parts) {
    make_room(work_->places, count);
    uint32_t* places = work_->places.data();
    __extension__ using Wide = unsigned __int128;
    // Written for every id, because a branch would be mispredicted.
    for (int64_t i = 0; i < count; ++i) {
      places[count_] = static_cast<uint32_t>(i);
      const uint64_t hash = hasher_.hash(ids[i]);
      // The low bits choose the slot, so the high ones choose the part.
      count_ += static_cast<uint64_t>((static_cast<Wide>(hash) * num_parts) >> 64) == part;
    }
  }

  // Numbers the keys from 0 in the order of the batch, and counts the ids of each.
  void number(const int64_t* ids) {
    make_room(work_->numbers, count_);
    const uint64_t num_slots = std::bit_ceil(static_cast<uint64_t>(count_ + count_ / 2) | 1);
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

  // Distributes the positions of the ids by key, from `first_place` of the plan; the keys are
  // numbered from `first_key`. `inverse` may be NULL.
  void deal(const TablePlan<T>& plan, int64_t first_place, int64_t first_key, uint32_t* inverse) {
    uint32_t next = 0;
    for (int64_t key = 0; key < num_keys_; ++key) {
      plan.keys[static_cast<size_t>(first_key + key)] = keys_[key];
      plan.starts[static_cast<size_t>(first_key + key)] = first_place + next;
      const uint32_t num_sources = ends_[key];
      most_sources_ = std::max<int64_t>(most_sources_, num_sources);
      ends_[key] = next;
      next += num_sources;
    }
    const uint32_t* places = work_->places.data();
    const uint32_t* numbers = work_->numbers.data();
    uint32_t* const slots = plan.slots.get();
    T* const scales = plan.scales.get();
    int64_t i = 0;
    int64_t before = 0;      // ids of the features already dealt out
    int64_t first_slot = 0;  // bags of these
    for (const FeatureIds<T>& input : plan.features) {
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
        const uint32_t number = numbers[i];
        const int64_t place = first_place + ends_[number]++;
        slots[place] = static_cast<uint32_t>(first_slot + bag);
        if (inverse != nullptr) inverse[places[i]] = static_cast<uint32_t>(first_key + number);
        if (scales == nullptr) continue;
        const T share = input.is_mean && input.offsets != nullptr
                            ? T{1} / static_cast<T>(input.offsets[bag + 1] - input.offsets[bag])
                            : T{1};
        const T scale = input.weights != nullptr ? input.weights[id] * share : share;
        scales[place] = scale;
        // A comparison with NaN is false, so NaN replaces the maximum and stays.
        if (!(std::abs(scale) <= largest_scale_) && largest_scale_ == largest_scale_) {
          largest_scale_ = std::abs(scale);
        }
      }
      before = end;
      first_slot += input.count;
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


// Numbers of keys have 32 bits.
void check_numbered(const char* what, int64_t count) {
  if (count <= kernels::kMostIds) return;
  throw abi::StorageError(SPARRING_INVALID_ARGUMENT,
                          "at most " + std::to_string(kernels::kMostIds) + " " + what +
                              " of one table in one batch, found " + std::to_string(count) +
                              "; split the batch");
}

}  // namespace

template <class T>
TablePlan<T> make_plan(const SparringExecutor* executor, std::vector<FeatureIds<T>> features,
                       bool is_looked_up) {
  TablePlan<T> plan;
  plan.features = std::move(features);
  int64_t count = 0;
  int64_t num_slots = 0;
  bool is_scaled = false;
  for (const FeatureIds<T>& input : plan.features) {
    count += num_ids(input);
    num_slots += input.count;
    is_scaled |= has_scales(input);
  }
  check_numbered("ids", count);
  check_numbered("bags", num_slots);
  const auto size = static_cast<size_t>(count);
  const int64_t* ids = nullptr;
  std::unique_ptr<int64_t[]> joined;
  if (plan.features.size() == 1) {
    ids = plan.features[0].ids + first_id(plan.features[0]);
  } else {
    joined = std::make_unique_for_overwrite<int64_t[]>(size);
    int64_t* to = joined.get();
    for (const FeatureIds<T>& input : plan.features) {
      to = std::copy_n(input.ids + first_id(input), num_ids(input), to);
    }
    ids = joined.get();
  }
  plan.slots = std::make_unique_for_overwrite<uint32_t[]>(size);
  if (is_looked_up) plan.inverse = std::make_unique_for_overwrite<uint32_t[]>(size);
  if (is_scaled) plan.scales = std::make_unique_for_overwrite<T[]>(size);

  const int64_t num_parts = num_parts_for(executor, count);
  std::vector<Part<T>> parts(static_cast<size_t>(num_parts));
  std::vector<int64_t> first_keys(parts.size());
  std::vector<int64_t> first_places(parts.size());
  auto find_keys = [&](int64_t part) {
    Part<T>& each = parts[static_cast<size_t>(part)];
    each.choose(ids, count, static_cast<uint64_t>(part), static_cast<uint64_t>(num_parts));
    each.number(ids);
  };
  auto lay_out = [&] {
    int64_t num_places = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      first_keys[i] = plan.num_keys;
      first_places[i] = num_places;
      plan.num_keys += parts[i].num_keys();
      num_places += parts[i].count();
    }
    const auto num_keys = static_cast<size_t>(plan.num_keys);
    plan.keys = std::make_unique_for_overwrite<int64_t[]>(num_keys);
    plan.starts = std::make_unique_for_overwrite<int64_t[]>(num_keys + 1);
    plan.starts[num_keys] = count;
  };
  auto deal = [&](int64_t part) {
    const auto i = static_cast<size_t>(part);
    parts[i].deal(plan, first_places[i], first_keys[i], plan.inverse.get());
  };
  sync_wait(schedule(executor_scheduler(executor)) | bulk(num_parts, find_keys) | then(lay_out) |
            bulk(num_parts, deal));
  for (const Part<T>& part : parts) {
    plan.most_sources = std::max(plan.most_sources, part.most_sources());
    if (!(part.largest_scale() <= plan.largest_scale) &&
        plan.largest_scale == plan.largest_scale) {
      plan.largest_scale = part.largest_scale();
    }
  }
  return plan;
}

template <class T>
TablePlan<T> plan_distinct(const FeatureIds<T>& ids) {
  check_numbered("ids", ids.count);
  TablePlan<T> plan;
  const auto count = static_cast<size_t>(ids.count);
  plan.features = {ids};
  plan.num_keys = ids.count;
  plan.most_sources = std::min<int64_t>(ids.count, 1);
  plan.keys = std::make_unique_for_overwrite<int64_t[]>(count);
  plan.starts = std::make_unique_for_overwrite<int64_t[]>(count + 1);
  plan.slots = std::make_unique_for_overwrite<uint32_t[]>(count);
  std::copy_n(ids.ids, count, plan.keys.get());
  std::iota(plan.starts.get(), plan.starts.get() + count + 1, int64_t{0});
  std::iota(plan.slots.get(), plan.slots.get() + count, uint32_t{0});
  return plan;
}

namespace {

// Number of keys per visit.
constexpr int64_t kVisitedKeys = 4096;

}  // namespace

template <class T>
void find_handles(const SparringExecutor* executor, TablePlan<T>& plan) {
  const abi::StorageHandle* const storage = plan.features[0].table->storage;
  if (storage == nullptr || !storage->keeps_handles() || plan.num_keys == 0) return;
  auto handles = std::make_unique_for_overwrite<const void*[]>(static_cast<size_t>(plan.num_keys));
  const int64_t num_visits = (plan.num_keys + kVisitedKeys - 1) / kVisitedKeys;
  std::vector<uint64_t> generations(static_cast<size_t>(num_visits));
  auto look = [&](int64_t number) {
    const int64_t first = number * kVisitedKeys;
    SparringVisit visit{};
    visit.count = std::min(kVisitedKeys, plan.num_keys - first);
    visit.keys = plan.keys.get() + first;
    visit.context = handles.get() + first;
    visit.show = [](void* context, int64_t begin, int64_t count,
                    const void* const* rows) -> int32_t {
      std::copy_n(rows, count, static_cast<const void**>(context) + begin);
      return 0;
    };
    storage->visit(visit);
    generations[static_cast<size_t>(number)] = visit.generation;
  };
  sync_wait(schedule(executor_scheduler(executor)) |
            bulk_chunked(num_visits, 1, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) look(i);
            }));
  // Another thread wrote at the same time, so the handles have different generations.
  const auto is_other = [&](uint64_t each) { return each != generations[0]; };
  if (std::any_of(generations.begin(), generations.end(), is_other)) return;
  plan.handles = std::move(handles);
  plan.generation = generations[0];
}

template struct TablePlan<float>;
template struct TablePlan<double>;
template TablePlan<float> make_plan(const SparringExecutor*, std::vector<FeatureIds<float>>, bool);
template TablePlan<double> make_plan(const SparringExecutor*, std::vector<FeatureIds<double>>, bool);
template TablePlan<float> plan_distinct(const FeatureIds<float>&);
template TablePlan<double> plan_distinct(const FeatureIds<double>&);
template void find_handles(const SparringExecutor*, TablePlan<float>&);
template void find_handles(const SparringExecutor*, TablePlan<double>&);

}  // namespace sparring::collection
