#include "collection/row_copies.h"

#include <cstring>
#include <vector>

#include "execution/senders.h"
#include "kernels/parallel.h"

namespace sparring::collection {

using execution::bulk_chunked;
using execution::executor_scheduler;
using execution::schedule;
using execution::sync_wait;

namespace {

// Copies rows to positions in the order of the keys.
struct Copier {
  std::byte* rows;
  uint8_t* found;
  size_t row_bytes;
  const int64_t* places = nullptr;  // of the visited keys; NULL: their own positions

  static int32_t show(void* context, int64_t begin, int64_t count, const void* const* shown) {
    const auto& self = *static_cast<const Copier*>(context);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = self.places == nullptr ? begin + i : self.places[begin + i];
      std::byte* const to = self.rows + static_cast<size_t>(place) * self.row_bytes;
      self.found[place] = shown[i] != nullptr;
      if (shown[i] != nullptr) {
        std::memcpy(to, shown[i], self.row_bytes);
      } else {
        std::memset(to, 0, self.row_bytes);
      }
    }
    return 0;
  }
};

}  // namespace

void copy_rows(const SparringExecutor* executor, const KeyRows& keys, std::byte* rows,
               uint8_t* found) {
  const auto row_bytes = static_cast<size_t>(keys.storage->row_bytes());
  auto copy = [&](int64_t begin, int64_t end) {
    Copier copier{rows + static_cast<size_t>(begin) * row_bytes, found + begin, row_bytes};
    SparringVisit visit{};
    visit.count = end - begin;
    visit.keys = keys.keys + begin;
    visit.columns = {0, row_bytes};
    visit.show = &Copier::show;
    visit.context = &copier;
    visit.handles = keys.handles + begin;
    visit.generation = keys.generation;
    keys.storage->visit(visit);
    // These keys had no row when the plan was created, but may have one now.
    std::vector<int64_t> places;
    std::vector<int64_t> missing;
    for (int64_t i = 0; i < end - begin; ++i) {
      if (copier.found[i] != 0) continue;
      places.push_back(i);
      missing.push_back(visit.keys[i]);
    }
    if (missing.empty()) return;
    copier.places = places.data();
    visit.count = static_cast<int64_t>(missing.size());
    visit.keys = missing.data();
    visit.handles = nullptr;
    keys.storage->visit(visit);
  };
  sync_wait(schedule(executor_scheduler(executor)) |
            bulk_chunked(keys.count, kernels::grain_for(2 * static_cast<int64_t>(row_bytes)),
                         copy));
}

abi::EvictedRows put_rows(const KeyRows& keys, const std::byte* rows) {
  struct Putter {
    const std::byte* rows;
    size_t row_bytes;

    static void change(void* context, int64_t count, const int64_t* positions, void* const* to,
                       const uint8_t*) {
      const auto& self = *static_cast<const Putter*>(context);
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(to[i], self.rows + static_cast<size_t>(positions[i]) * self.row_bytes,
                    self.row_bytes);
      }
    }
  } putter{rows, static_cast<size_t>(keys.storage->row_bytes())};
  SparringUpdate update{};
  update.count = keys.count;
  update.keys = keys.keys;
  update.change = &Putter::change;
  update.context = &putter;
  update.handles = keys.handles;
  update.generation = keys.generation;
  abi::EvictedRows evicted;
  keys.storage->update(update, &evicted);
  return evicted;
}

}  // namespace sparring::collection
