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

void prefetch_scores(const Bucket* bucket) {
  const auto* first = reinterpret_cast<const char*>(bucket->scores());
  for (uint64_t byte = 0; byte < kSlots * sizeof(uint64_t); byte += 64) {
    __builtin_prefetch(first + byte, 1);
  }
}

}  // namespace

void Table::upsert(SparringUpsert& call) {
  const std::unique_lock<ReaderWriterLock> lock(lock_);
  check_scores(call.scores);
  if (evicts()) {
    upsert_evicting(call);
  } else {
    upsert_growing(call);
  }
}

void Table::upsert_growing(SparringUpsert& call) {
  const SparringExecutor* executor = call.call.executor;
  std::vector<uint32_t> numbers(static_cast<size_t>(call.count));
  const IndexView index = contents_->index.view();
  parallel_for(executor, call.count, kGrain, [&](int64_t begin, int64_t end) {
    kernels_->locate(index, call.keys + begin, end - begin, numbers.data() + begin, nullptr);
  });
  std::vector<int64_t> missing;
  missing.reserve(static_cast<size_t>(std::count(numbers.begin(), numbers.end(), kNoRow)));
  for (int64_t i = 0; i < call.count; ++i) {
    if (numbers[static_cast<size_t>(i)] == kNoRow) missing.push_back(i);
  }
  const uint64_t size = contents_->index.size();
  if (missing.size() > layout_.max_rows - size) {
    throw StatusError(SPARRING_CAPACITY,
                      "upsert of " + std::to_string(call.count) + " keys, " +
                          std::to_string(missing.size()) + " of them new: the table holds " +
                          std::to_string(size) + " of at most " +
                          std::to_string(layout_.max_rows) +
                          " rows, and its policy is none; raise its capacity or memory_bytes, "
                          "or choose a policy that evicts");
  }
  policy_.begin_call();
  insert_missing(call, missing, numbers.data());

  // Nothing below can fail.
  const RowInput whole{contents_->rows.view(), options_.row_bytes,
                       static_cast<const char*>(call.rows), call.row_stride};
  parallel_for(executor, call.count, kGrain, [&](int64_t begin, int64_t end) {
    RowInput part = whole;
    part.in += static_cast<uint64_t>(begin) * whole.stride;
    kernels_->scatter(part, numbers.data() + begin, end - begin);
  });
  if (keeps_scores()) {
    update_scores(executor, call.keys, call.scores, call.count, &missing);
  }
}

void Table::insert_missing(const SparringUpsert& call, const std::vector<int64_t>& missing,
                           uint32_t* numbers) {
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
        numbers[i] = twin.bucket->row(twin.slot);
        continue;
      }
      // The number is taken only when nothing can fail any more.
      const Place place = index.insert(key, hash, kNoRow, policy_.initial(given));
      numbers[i] = place.bucket->row(place.slot) = rows.allocate();
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

void Table::upsert_evicting(SparringUpsert& call) {
  Index& index = contents_->index;
  const auto count = static_cast<uint64_t>(call.count);
  EvictionBuffer evicted(call.evicted, options_.row_bytes, count);
  contents_->rows.reserve(std::min(count, layout_.max_rows - index.size()));

  // Nothing below can fail but the sink.
  policy_.begin_call();
  constexpr int64_t kBlock = 32;
  uint32_t numbers[kBlock];
  for (int64_t at = 0; at < call.count; at += kBlock) {
    const int64_t size = std::min(kBlock, call.count - at);
    // Only brings what the keys need into the caches, all of it at once: which
    // keys are there may change with every key of the block.
    kernels_->locate(index.view(), call.keys + at, size, numbers, nullptr);
    for (int64_t i = 0; i < size; ++i) {
      prefetch_scores(index.home(index.hash(call.keys[at + i])));
      if (numbers[i] != kNoRow) __builtin_prefetch(contents_->rows.at(numbers[i]), 1);
    }
    for (int64_t i = at; i < at + size; ++i) {
      const char* row = static_cast<const char*>(call.rows) +
                        static_cast<uint64_t>(i) * call.row_stride;
      upsert_or_evict(call.keys[i], row, call.scores == nullptr ? nullptr : call.scores + i,
                      evicted);
    }
  }
  evicted.finish();
}

void Table::upsert_or_evict(int64_t key, const char* row, const uint64_t* given,
                            EvictionBuffer& evicted) {
  Index& index = contents_->index;
  Pool& rows = contents_->rows;
  const uint64_t hash = index.hash(key);
  if (const Place place = index.locate(key, hash); place.bucket != nullptr) {
    uint64_t& score = place.bucket->scores()[place.slot];
    score = policy_.updated(score, given);
    std::memcpy(rows.at(place.bucket->row(place.slot)), row, options_.row_bytes);
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
