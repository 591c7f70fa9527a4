// The upsert of a table. Apart from table.cc because it is the one operation in
// which index, rows, policy and eviction all meet.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "parallel.h"
#include "status.h"
#include "table.h"

namespace sparring::hkv {
namespace {

constexpr int64_t kGrain = 1024;

// Inlined always: see prefetch() in kernel_body.h.
SPARRING_HKV_INLINE void prefetch_scores(const Bucket* bucket) {
  __builtin_prefetch(bucket);
  const auto* first = reinterpret_cast<const char*>(bucket->scores());
  for (uint64_t byte = 0; byte < kSlots * sizeof(uint64_t); byte += 64) {
    __builtin_prefetch(first + byte, 1);
  }
}

}  // namespace

void Table::upsert(SparringUpsert& call) {
  const std::unique_lock<ReaderWriterLock> lock(lock_);
  check_scores(call.scores);
  Located located = locate(call);
  if (evicts()) {
    upsert_evicting(call, located);
  } else {
    upsert_growing(call, located);
  }
}

Table::Located Table::locate(const SparringUpsert& call) const {
  Located located;
  located.numbers.resize(static_cast<size_t>(call.count));
  uint32_t* const numbers = located.numbers.data();
  const IndexView index = contents_->index.view();
  parallel_for(call.call.executor, call.count, kGrain, [&](int64_t begin, int64_t end) {
    kernels_->locate(index, call.keys + begin, end - begin, numbers + begin, nullptr);
  });
  const auto num_missing = std::count(numbers, numbers + call.count, kNoRow);
  located.missing.reserve(static_cast<size_t>(num_missing));
  for (int64_t i = 0; i < call.count; ++i) {
    if (numbers[i] == kNoRow) located.missing.push_back(i);
  }
  return located;
}

void Table::write_rows(const SparringUpsert& call, const Located& located) const {
  const RowInput whole{contents_->rows.view(), options_.row_bytes,
                       static_cast<const char*>(call.rows), call.row_stride};
  parallel_for(call.call.executor, call.count, kGrain, [&](int64_t begin, int64_t end) {
    RowInput part = whole;
    part.in += static_cast<uint64_t>(begin) * whole.stride;
    kernels_->scatter(part, located.numbers.data() + begin, end - begin);
  });
}

void Table::upsert_growing(SparringUpsert& call, Located& located) {
  const uint64_t size = contents_->index.size();
  if (located.missing.size() > layout_.max_rows - size) {
    throw StatusError(SPARRING_CAPACITY,
                      "upsert of " + std::to_string(call.count) + " keys, " +
                          std::to_string(located.missing.size()) + " of them new: the table holds " +
                          std::to_string(size) + " of at most " +
                          std::to_string(layout_.max_rows) +
                          " rows, and its policy is none; raise its capacity or memory_bytes, "
                          "or choose a policy that evicts");
  }
  policy_.begin_call();
  insert_missing(call, located);

  // Nothing below can fail.
  write_rows(call, located);
  if (keeps_scores()) {
    update_scores(call.call.executor, call.keys, call.scores, call.count, &located.missing);
  }
}

void Table::insert_missing(const SparringUpsert& call, Located& located) {
  const std::vector<int64_t>& missing = located.missing;
  Index& index = contents_->index;
  Pool& rows = contents_->rows;
  rows.reserve(missing.size());
  size_t done = 0;
  try {
    for (; done < missing.size(); ++done) {
      const int64_t i = missing[done];
      const int64_t key = call.keys[i];
      const uint64_t hash = index.hash(key);
      const uint64_t* given = call.scores == nullptr ? nullptr : call.scores + i;
      // A caller that breaks its promise of unique keys must not break the table.
      if (const Place twin = index.locate(key, hash); twin.bucket != nullptr) {
        located.numbers[static_cast<size_t>(i)] = twin.bucket->row(twin.slot);
        continue;
      }
      // The number is taken only when nothing can fail any more.
      const Place place = index.insert(key, hash, kNoRow, policy_.initial(given));
      place.bucket->row(place.slot) = rows.allocate();
      located.numbers[static_cast<size_t>(i)] = place.bucket->row(place.slot);
    }
  } catch (const std::bad_alloc&) {
    while (done > 0) {
      const int64_t key = call.keys[missing[--done]];
      const uint32_t row = index.erase(key, index.hash(key));
      if (row != kNoRow) rows.release(row);
    }
    throw;
  }
}

void Table::upsert_evicting(SparringUpsert& call, const Located& located) {
  Index& index = contents_->index;
  const std::vector<int64_t>& missing = located.missing;
  EvictionBuffer evicted(call.evicted, options_.row_bytes, missing.size());
  contents_->rows.reserve(
      std::min<uint64_t>(missing.size(), layout_.max_rows - index.size()));

  // Nothing below can fail but the sink.
  policy_.begin_call();
  write_rows(call, located);
  update_scores(call.call.executor, call.keys, call.scores, call.count, &missing);
  constexpr size_t kAhead = 8;
  for (size_t next = 0; next < missing.size(); ++next) {
    if (next + kAhead < missing.size()) {
      prefetch_scores(index.home(index.hash(call.keys[missing[next + kAhead]])));
    }
    const int64_t i = missing[next];
    const char* row =
        static_cast<const char*>(call.rows) + static_cast<uint64_t>(i) * call.row_stride;
    insert_or_evict(call.keys[i], row, call.scores == nullptr ? nullptr : call.scores + i,
                    evicted);
  }
  evicted.finish();
}

void Table::insert_or_evict(int64_t key, const char* row, const uint64_t* given,
                            EvictionBuffer& evicted) {
  Index& index = contents_->index;
  Pool& rows = contents_->rows;
  const uint64_t hash = index.hash(key);
  // As in insert_missing(): a key that the caller repeats.
  if (const Place twin = index.locate(key, hash); twin.bucket != nullptr) {
    std::memcpy(rows.at(twin.bucket->row(twin.slot)), row, options_.row_bytes);
    return;
  }
  const uint64_t score = policy_.initial(given);
  if (index.size() < layout_.max_rows && index.has_room(hash)) {
    const uint32_t number = rows.allocate();
    index.insert(key, hash, number, score);
    std::memcpy(rows.at(number), row, options_.row_bytes);
    return;
  }
  const Place place = first_to_leave_near(hash);
  const Rank leaving{place.bucket->scores()[place.slot], place.bucket->key(place.slot)};
  if (Rank{score, key} < leaving) {
    evicted.add(key, row, score);
    return;
  }
  const uint32_t number = place.bucket->row(place.slot);
  evicted.add(leaving.key, rows.at(number), leaving.score);
  if (place.bucket == index.home(hash)) {
    index.replace(place, key, hash, score);
  } else {
    index.erase(leaving.key, index.hash(leaving.key));
    index.insert(key, hash, number, score);
  }
  std::memcpy(rows.at(number), row, options_.row_bytes);
}

// In the bucket of the hash, or in the first bucket behind it that holds any.
// REQUIRES: the table is not empty.
Place Table::first_to_leave_near(uint64_t hash) {
  const uint64_t num_buckets = layout_.num_fixed_buckets;
  uint64_t number = fixed_bucket_of(hash, num_buckets);
  for (;;) {
    const Place place = first_to_leave(contents_->index.bucket(number));
    if (place.bucket != nullptr) return place;
    number = number + 1 == num_buckets ? 0 : number + 1;
  }
}

}  // namespace sparring::hkv
