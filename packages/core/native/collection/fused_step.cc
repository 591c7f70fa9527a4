#include "collection/fused_step.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "execution/senders.h"
#include "kernels/bytes.h"
#include "kernels/simd.h"

namespace sparring::collection {

using execution::bulk;
using execution::executor_scheduler;
using execution::schedule;
using execution::sync_wait;
using execution::then;

namespace {

// Maximum size of the gradients of a block in the nearest cache and on the stack.
constexpr int64_t kBlockBytes = 16 * 1024;
constexpr int64_t kMostBlock = 32;

// Keys without a row, and whether they are admitted.
struct Decision {
  std::vector<int64_t> keys;
  std::vector<uint8_t> is_admitted;

  int64_t num_admitted() const { return std::count(is_admitted.begin(), is_admitted.end(), 1); }
  int64_t num_refused() const { return static_cast<int64_t>(keys.size()) - num_admitted(); }
};

// Throws std::bad_alloc.
template <class T>
Decision decide(const FusedUpdate<T>& update, std::vector<int64_t> keys) {
  Decision decision{std::move(keys), {}};
  decision.is_admitted.resize(decision.keys.size(), 1);
  if (update.filter != nullptr) {
    update.filter->decide(decision.keys.data(), static_cast<int64_t>(decision.keys.size()),
                          update.admission_step, decision.is_admitted.data());
  }
  return decision;
}

// Updates the rows of one table. Several threads use one object concurrently.
template <class T>
class Changer {
 public:
  Changer(const FusedUpdate<T>& update, const GroupedGradients<T>& grouped)
      : update_(update),
        grouped_(grouped),
        keys_(grouped.plan->keys.get()),
        prepared_(update.spec),
        initial_state_(kernels::stored_state(update.table->layout, update.initial_state)),
        loops_(kernels::row_kernels<T>()),
        dim_(update.table->layout.dim) {}

  static int32_t admit(void* context, int64_t count, const int64_t* positions,
                       uint8_t* is_admitted) {
    auto& self = *static_cast<Changer*>(context);
    try {
      std::vector<int64_t> keys(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        keys[static_cast<size_t>(i)] = self.keys_[positions[i]];
      }
      self.decision = decide(self.update_, std::move(keys));
      std::copy_n(self.decision.is_admitted.data(), count, is_admitted);
      return 0;
    } catch (...) {
      return 1;
    }
  }

  static void change(void* context, int64_t count, const int64_t* positions, void* const* rows,
                     const uint8_t* is_new) {
    const auto& self = *static_cast<const Changer*>(context);
    const int64_t gradient_bytes = self.dim_ * static_cast<int64_t>(sizeof(T));
    if (gradient_bytes <= kBlockBytes) {
      alignas(64) std::byte gradients[kBlockBytes];
      self.change_blocks(count, positions, rows, is_new, reinterpret_cast<T*>(gradients),
                         std::min(kMostBlock, kBlockBytes / gradient_bytes));
    } else {
      self.change_wide(count, positions, rows, is_new);
    }
  }

  Decision decision;

 private:
  // On the stack, because `change` must not fail.
  [[gnu::noinline]] void change_wide(int64_t count, const int64_t* positions, void* const* rows,
                                     const uint8_t* is_new) const {
    constexpr int64_t kMostDim = 65'536;
    alignas(64) std::byte gradients[kMostDim * sizeof(T)];
    change_blocks(count, positions, rows, is_new, reinterpret_cast<T*>(gradients), 1);
  }

  void change_blocks(int64_t count, const int64_t* positions, void* const* rows,
                     const uint8_t* is_new, T* gradients, int64_t block) const {
    int64_t keys[kMostBlock];
    for (int64_t at = 0; at < count; at += block) {
      const int64_t part = std::min(block, count - at);
      for (int64_t i = 0; i < part; ++i) {
        keys[i] = keys_[positions[at + i]];
      }
      make_new(keys, rows + at, is_new + at, part, gradients);
      loops_.sum_by_key({grouped_.sources.get(), grouped_.plan->scales.get(), grouped_.plan->starts.get(),
                         positions + at, gradients, part, dim_, grouped_.plan->num_sources()});
      kernels::update_rows(prepared_, {keys, rows + at, gradients, part});
    }
  }

  // `made`: memory for `count` embeddings, which are not larger than gradients.
  void make_new(const int64_t* keys, void* const* rows, const uint8_t* is_new, int64_t count,
                T* made) const {
    int64_t new_keys[kMostBlock];
    const uint8_t found[kMostBlock] = {};
    int64_t num_new = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (is_new[i] != 0) new_keys[num_new++] = keys[i];
    }
    if (num_new == 0) return;
    const kernels::RowLayout& layout = update_.table->layout;
    kernels::initialize(nullptr, update_.table->initializer,
                        {kernels::make_row_layout(layout.type, dim_, 0), new_keys, found, num_new,
                         nullptr, made});
    const auto embedding_bytes =
        static_cast<size_t>(kernels::embedding_bytes(layout.type, layout.dim));
    const auto* from = reinterpret_cast<const std::byte*>(made);
    for (int64_t i = 0; i < count; ++i) {
      if (is_new[i] == 0) continue;
      auto* row = static_cast<std::byte*>(rows[i]);
      std::memcpy(row, from, embedding_bytes);
      from += embedding_bytes;
      // Padding is written too, so that equal rows have equal bytes.
      std::memset(row + embedding_bytes, 0,
                  static_cast<size_t>(layout.row_bytes) - embedding_bytes);
      std::copy(initial_state_.begin(), initial_state_.end(), row + layout.state_begin);
    }
  }

  const FusedUpdate<T>& update_;
  const GroupedGradients<T>& grouped_;
  const int64_t* const keys_;
  const kernels::PreparedUpdate prepared_;
  const std::vector<std::byte> initial_state_;  // empty: zeros
  const kernels::RowKernels<T>& loops_;
  const int64_t dim_;
};

template <class T>
TableOutcome apply_to(const FusedUpdate<T>& update, const GroupedGradients<T>& grouped,
                      Decision& decision) {
  TableOutcome outcome;
  const TablePlan<T>& plan = *grouped.plan;
  if (plan.num_keys == 0) return outcome;
  Changer<T> changer(update, grouped);
  SparringUpdate call{};
  call.count = plan.num_keys;
  call.keys = plan.keys.get();
  call.handles = plan.handles.get();
  call.generation = plan.generation;
  call.admit = update.filter != nullptr ? &Changer<T>::admit : nullptr;
  call.change = &Changer<T>::change;
  call.context = &changer;
  update.table->storage->update(call, &outcome.evicted);
  outcome.num_inserted = call.inserted;
  decision = std::move(changer.decision);
  outcome.num_refused = decision.num_refused();
  outcome.num_updated = plan.num_keys - outcome.num_refused;
  return outcome;
}

}  // namespace

template <class T>
FusedStep<T>::FusedStep(const SparringExecutor* executor, std::vector<FusedUpdate<T>> updates)
    : executor_(executor), updates_(std::move(updates)), grouped_(updates_.size()) {
  sync_wait(schedule(executor_scheduler(executor_for_tables())) |
            bulk(static_cast<int64_t>(updates_.size()), [&](int64_t place) {
              const auto i = static_cast<size_t>(place);
              FusedUpdate<T>& update = updates_[i];
              grouped_[i] = update.plan ? lay_out(executor_, update.plan, update.gradients)
                                        : group(executor_, update.gradients);
            }));
}

template <class T>
const SparringExecutor* FusedStep<T>::executor_for_tables() const {
  int64_t ids = 0, bytes = 0;
  for (const FusedUpdate<T>& update : updates_) {
    int64_t own = 0;
    for (const FeatureGradient<T>& each : update.gradients) own += num_ids(each.input);
    ids += own;
    bytes += own * update.table->layout.dim * static_cast<int64_t>(sizeof(T));
  }
  return kernels::executor_for_batch(executor_, ids, bytes);
}

template <class T>
bool FusedStep<T>::is_certainly_finite(size_t table) const {
  const TablePlan<T>& plan = *grouped_[table].plan;
  const double bound = static_cast<double>(updates_[table].largest_gradient) *
                       static_cast<double>(plan.largest_scale) *
                       static_cast<double>(std::max<int64_t>(1, plan.most_sources));
  // False for NaN. Half of the range is much more than rounding can add.
  return bound < static_cast<double>(std::numeric_limits<T>::max()) / 2;
}

template <class T>
int64_t FusedStep<T>::count_new(size_t table) const {
  struct Missing {
    const int64_t* keys;
    std::vector<int64_t> found;
  };
  const TablePlan<T>& plan = *grouped_[table].plan;
  const auto missing_of = [&](const int64_t* keys, int64_t count, const void* const* handles) {
    Missing missing{keys, {}};
    if (count == 0) return missing.found;
    SparringVisit visit{};
    visit.count = count;
    visit.keys = keys;
    // One element, because some storages support only columns of whole elements.
    const kernels::RowType type = updates_[table].table->layout.type;
    visit.columns = {0, static_cast<uint64_t>(kernels::element_bytes(type))};
    visit.context = &missing;
    visit.show = [](void* context, int64_t begin, int64_t shown,
                    const void* const* rows) -> int32_t {
      auto& self = *static_cast<Missing*>(context);
      for (int64_t i = 0; i < shown; ++i) {
        if (rows[i] == nullptr) self.found.push_back(self.keys[begin + i]);
      }
      return 0;
    };
    visit.handles = handles;
    visit.generation = plan.generation;
    missing.found.reserve(static_cast<size_t>(count));  // so that `show` does not throw
    updates_[table].table->storage->visit(visit);
    return missing.found;
  };
  std::vector<int64_t> missing =
      missing_of(plan.keys.get(), plan.num_keys, plan.handles.get());
  // These keys had no row when the plan was created, but may have one now.
  if (plan.handles) missing = missing_of(missing.data(), static_cast<int64_t>(missing.size()), nullptr);
  return decide(updates_[table], std::move(missing)).num_admitted();
}

template <class T>
std::vector<TableOutcome> FusedStep<T>::apply() {
  std::vector<TableOutcome> outcomes(updates_.size());
  std::vector<Decision> decisions(updates_.size());
  auto change = [&](int64_t place) {
    const auto i = static_cast<size_t>(place);
    try {
      outcomes[i] = apply_to(updates_[i], grouped_[i], decisions[i]);
    } catch (...) {
      outcomes[i].failure = std::current_exception();
    }
  };
  auto count = [&] {
    for (size_t i = 0; i < updates_.size(); ++i) {
      const Decision& each = decisions[i];
      if (each.keys.empty() || outcomes[i].failure) continue;
      updates_[i].filter->record(each.keys.data(), each.is_admitted.data(),
                                 static_cast<int64_t>(each.keys.size()));
    }
  };
  sync_wait(schedule(executor_scheduler(executor_for_tables())) |
            bulk(static_cast<int64_t>(updates_.size()), change) | then(count));
  return outcomes;
}

template class FusedStep<float>;
template class FusedStep<double>;

}  // namespace sparring::collection
