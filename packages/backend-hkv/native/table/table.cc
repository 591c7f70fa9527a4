#include "table.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <string>

#include "set_option.h"
#include "sparring/storage_border.h"

namespace sparring::hkv {
namespace {

using border::StatusError;

// Below this, processing a key is cheaper than waking a thread.
constexpr int64_t kGrain = 1024;
// Outputs of at least this size are written with streaming stores, because they
// would only evict the caches. Smaller ones stay in the last-level cache for
// their reader.
constexpr uint64_t kLargeBytes = uint64_t{64} << 20;

using SharedLock = std::shared_lock<ReaderWriterLock>;
using UniqueLock = std::unique_lock<ReaderWriterLock>;

// Number of rows that are prefetched while a block of them is shown.
constexpr int64_t kShown = SPARRING_HKV_BLOCK;
// Beyond this many bytes of a row, the hardware prefetcher takes over.
constexpr uint64_t kMostAskedBytes = 1024;

// Returns a number that differs from the numbers of all tables in the process, including those of other
// libraries, which start elsewhere.
uint64_t new_generation() {
  static std::atomic<uint64_t> next = [] {
    std::random_device random;
    return uint64_t{random()} << 32;
  }();
  uint64_t generation;
  do {
    generation = next.fetch_add(1, std::memory_order_relaxed);
  } while (generation == 0);
  return generation;
}

}  // namespace

Table::Contents::Contents(const TableOptions& options, const Layout& layout)
    : index({.has_scores = options.policy != PolicyKind::kNone,
             .num_fixed_buckets = layout.num_fixed_buckets,
             .max_buckets = layout.max_buckets,
             .seed = options.hash_seed}),
      rows(row_stride(options.row_bytes), layout.max_rows, 0) {}

Table::Table(const TableOptions& options, const Kernels* kernels)
    : options_(options),
      layout_(make_layout(options, sizeof(Table) + sizeof(Contents))),
      kernels_(kernels),
      policy_(options.policy),
      contents_(std::make_unique<Contents>(options, layout_)),
      generation_(new_generation()) {}

void Table::void_handles() { generation_ = new_generation(); }

bool Table::is_large(uint64_t count, uint64_t row_bytes) const {
  return count * row_bytes >= kLargeBytes;
}

void Table::find(SparringFind& call) const {
  const SharedLock lock(lock_);
  const IndexView index = contents_->index.view();
  const uint64_t bytes = call.columns.end - call.columns.begin;
  const RowOutput whole{contents_->rows.view(), call.columns.begin, call.columns.end,
                        static_cast<char*>(call.rows), call.row_stride,
                        is_large(static_cast<uint64_t>(call.count), bytes),
                        is_mixed_.load(std::memory_order_relaxed)};
  border::parallel_for(call.call.executor, call.count, kGrain, [&](int64_t begin, int64_t end) {
    RowOutput part = whole;
    part.out += static_cast<uint64_t>(begin) * whole.stride;
    kernels_->find(index, part, call.keys + begin, end - begin, call.found + begin);
  });
  note_share(call.found, call.count, whole.is_mixed);
}

// Adapts later finds. Small calls are ignored, because their fraction is not significant.
void Table::note_share(const uint8_t* found, int64_t count, bool was_mixed) const {
  if (count < kGrain / 4) return;
  const int64_t num_found = std::count(found, found + count, uint8_t{1});
  const bool is_mixed = std::min(num_found, count - num_found) > count / 8;
  if (is_mixed != was_mixed) is_mixed_.store(is_mixed, std::memory_order_relaxed);
}

void Table::visit(SparringVisit& call) const {
  const SharedLock lock(lock_);
  int32_t answer;
  if (call.handles != nullptr && call.generation == generation_) {
    answer = show_handles(call);
  } else {
    const RowVisitor visitor{contents_->rows.view(), call.columns.begin, call.columns.end,
                             call.show, call.context};
    answer = kernels_->visit(contents_->index.view(), visitor, call.keys, call.count);
  }
  call.generation = generation_;
  if (answer != 0) {
    throw StatusError(SPARRING_INTERNAL,
                      "the visitor of the rows returned " + std::to_string(answer) + ", expected 0");
  }
}

// Shows one block while the next one is prefetched.
int32_t Table::show_handles(const SparringVisit& call) const {
  const uint64_t bytes = call.columns.end - call.columns.begin;
  const void* rows[2][kShown];
  int64_t asked = 0;
  const auto ask = [&](const void** block) __attribute__((always_inline)) {
    const int64_t end = std::min(asked + kShown, call.count);
    for (; asked < end; ++asked) {
      const auto* row = static_cast<const char*>(call.handles[asked]);
      if (row != nullptr) {
        row += call.columns.begin;
        for (uint64_t byte = 0; byte < bytes && byte < kMostAskedBytes; byte += 64) {
          __builtin_prefetch(row + byte, 0, 3);
        }
        if (reinterpret_cast<uintptr_t>(row) % 64 != 0) __builtin_prefetch(row + bytes - 1, 0, 3);
      }
      *block++ = row;
    }
  };
  ask(rows[0]);
  int side = 0;
  for (int64_t at = 0; at < call.count; at += kShown, side ^= 1) {
    ask(rows[side ^ 1]);
    const int64_t size = std::min(kShown, call.count - at);
    const int32_t answer = call.show(call.context, at, size, rows[side]);
    if (answer != 0) return answer;
  }
  return 0;
}

void Table::scan(SparringScan& call) const {
  border::check(call.cursor[1] == 0, "cursor must be zero or the cursor of the previous chunk",
                call.cursor[1]);
  const SharedLock lock(lock_);
  std::vector<Entry> entries;
  const auto capacity = static_cast<uint64_t>(call.capacity);
  entries.reserve(std::min(capacity, contents_->index.size()) + kSlots);
  uint64_t cursor = call.cursor[0];
  call.is_done = contents_->index.collect(cursor, capacity, entries) ? 1 : 0;
  call.cursor[0] = cursor;
  call.count = static_cast<int64_t>(entries.size());
  std::vector<uint32_t> numbers(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    call.keys[i] = entries[i].key;
    if (call.scores != nullptr) call.scores[i] = entries[i].score;
    numbers[i] = entries[i].row;
  }
  if (call.rows == nullptr) return;
  const uint64_t bytes = call.columns.end - call.columns.begin;
  const RowOutput whole{contents_->rows.view(), call.columns.begin, call.columns.end,
                        static_cast<char*>(call.rows), bytes, false, false};
  border::parallel_for(call.call.executor, call.count, kGrain, [&](int64_t begin, int64_t end) {
    RowOutput part = whole;
    part.out += static_cast<uint64_t>(begin) * whole.stride;
    kernels_->gather(part, numbers.data() + begin, end - begin);
  });
}

void Table::stat(SparringStat& call) const {
  const SharedLock lock(lock_);
  call.capabilities = SPARRING_CONCURRENT_READS | SPARRING_ROW_HANDLES;
  if (layout_.is_bounded) call.capabilities |= SPARRING_BOUNDED;
  if (evicts()) call.capabilities |= SPARRING_EVICTS;
  if (options_.policy == PolicyKind::kCustom) call.capabilities |= SPARRING_SCORES_GIVEN;
  call.row_bytes = options_.row_bytes;
  call.size = static_cast<int64_t>(contents_->index.size());
  call.capacity = layout_.is_bounded ? static_cast<int64_t>(layout_.max_rows) : -1;
  call.memory_bytes = sizeof(Table) + sizeof(Contents) - sizeof(Index) +
                      contents_->index.memory_bytes() + contents_->rows.memory_bytes();
}

void Table::erase(SparringErase& call) {
  const UniqueLock lock(lock_);
  Index& index = contents_->index;
  int64_t erased = 0;
  constexpr int64_t kBlock = 64;
  uint32_t numbers[kBlock];
  for (int64_t at = 0; at < call.count; at += kBlock) {
    const int64_t size = std::min(kBlock, call.count - at);
    // Loads everything that the keys need into the caches.
    kernels_->locate(index.view(), call.keys + at, size, numbers, nullptr);
    for (int64_t i = 0; i < size; ++i) {
      if (numbers[i] != kNoRow) __builtin_prefetch(contents_->rows.at(numbers[i]), 1);
    }
    for (int64_t i = 0; i < size; ++i) {
      if (numbers[i] == kNoRow) continue;
      const uint32_t row = index.erase(call.keys[at + i], index.hash(call.keys[at + i]));
      if (row == kNoRow) continue;
      contents_->rows.release(row);
      ++erased;
    }
  }
  call.erased = erased;
  if (erased > 0) void_handles();
}

void Table::clear() {
  const UniqueLock lock(lock_);
  void_handles();
  contents_ = std::make_unique<Contents>(options_, layout_);
}

void Table::check_scores(const uint64_t* scores) const {
  if (scores != nullptr && !policy_.takes_scores()) {
    throw StatusError(SPARRING_UNSUPPORTED,
                      std::string("scores: policy ") + policy_.name() +
                          " does not accept them; omit them, or use policy custom, lfu or epoch_lfu");
  }
}

void Table::touch(SparringTouch& call) {
  const UniqueLock lock(lock_);
  check_scores(call.scores);
  policy_.begin_call();
  update_scores(call.call.executor, call.keys, call.scores, call.count, nullptr);
}

// `skipped`: positions, ascending, whose scores stay unchanged.
void Table::update_scores(const SparringExecutor* executor, const int64_t* keys,
                          const uint64_t* scores, int64_t count,
                          const std::vector<int64_t>* skipped) const {
  const IndexView index = contents_->index.view();
  border::parallel_for(executor, count, kGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 64;
    uint32_t numbers[kBlock];
    Place places[kBlock];
    const int64_t* skip = nullptr;
    const int64_t* last_skip = nullptr;
    if (skipped != nullptr) {
      skip = std::lower_bound(skipped->data(), skipped->data() + skipped->size(), begin);
      last_skip = skipped->data() + skipped->size();
    }
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t size = std::min(kBlock, end - at);
      kernels_->locate(index, keys + at, size, numbers, places);
      for (int64_t i = 0; i < size; ++i) {
        if (places[i].bucket == nullptr) continue;
        __builtin_prefetch(places[i].bucket->scores() + places[i].slot, 1);
      }
      for (int64_t i = 0; i < size; ++i) {
        if (skip != last_skip && *skip == at + i) {
          ++skip;
          continue;
        }
        if (places[i].bucket == nullptr) continue;
        uint64_t& score = places[i].bucket->scores()[places[i].slot];
        score = policy_.updated(score, scores == nullptr ? nullptr : scores + at + i);
      }
    }
  });
}

void Table::evict(SparringEvict& call) {
  const UniqueLock lock(lock_);
  // In rounds, to keep the list of evicted entries small.
  constexpr uint64_t kRound = 65536;
  Index& index = contents_->index;
  uint64_t left = std::min(static_cast<uint64_t>(call.wanted), index.size());
  EvictionBuffer evicted(call.sink, options_.row_bytes, left);
  std::vector<Rank> leaving;
  leaving.reserve(std::min(left, kRound));
  call.evicted = 0;
  if (left > 0) void_handles();
  while (left > 0) {
    first_to_leave(index, leaving);
    leaving.resize(std::min<uint64_t>(left, leaving.size()));
    for (const Rank& rank : leaving) {
      const uint32_t row = index.erase(rank.key, index.hash(rank.key));
      evicted.add(rank.key, contents_->rows.at(row), rank.score);
      contents_->rows.release(row);
    }
    left -= leaving.size();
    call.evicted += static_cast<int64_t>(leaving.size());
  }
  evicted.finish();
}

void Table::set_option(const char* name, const char* value) {
  const UniqueLock lock(lock_);
  set_policy_option(policy_, name, value);
}

}  // namespace sparring::hkv
