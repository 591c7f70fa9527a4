// The upsert and the update of a table. Separate from table.cc because they combine the index, rows,
// policy and eviction.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "sparring/storage_border.h"
#include "table.h"

namespace sparring::hkv {

namespace {

using border::StatusError;

constexpr int64_t kUpsertGrain = 1024;
// Number of new keys whose buckets are prefetched while one is inserted.
constexpr size_t kInsertedAhead = 8;
// Number of rows in a block of an update, and the minimum per thread.
constexpr int64_t kChangeBlock = SPARRING_HKV_BLOCK;
constexpr int64_t kChangeGrain = 512;

// Always inlined: see prefetch() in kernel_body.h.
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
  Located located = locate(call.call.executor, call.keys, call.count);
  if (evicts()) {
    upsert_evicting(call, located);
  } else {
    upsert_growing(call, located);
  }
}

Table::Located Table::locate(const SparringExecutor* executor, const int64_t* keys,
                             int64_t count) const {
  Located located;
  located.rows.resize(static_cast<size_t>(count));
  char** const rows = located.rows.data();
  const IndexView index = contents_->index.view();
  const ArenaView all = contents_->rows.view();
  border::parallel_for(executor, count, kUpsertGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 1024;
    uint32_t numbers[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t size = std::min(kBlock, end - at);
      kernels_->locate(index, keys + at, size, numbers, nullptr);
      for (int64_t i = 0; i < size; ++i) {
        rows[at + i] = numbers[i] == kNoRow ? nullptr : all.at(numbers[i]);
      }
    }
  });
  note_missing(located);
  return located;
}

Table::Located Table::locate(const SparringUpdate& call) const {
  if (call.handles == nullptr || call.generation != generation_) {
    return locate(call.call.executor, call.keys, call.count);
  }
  Located located;
  // The address of a row that this table may write to.
  auto* const handles = const_cast<char* const*>(reinterpret_cast<const char* const*>(call.handles));
  located.rows.assign(handles, handles + call.count);
  note_missing(located);
  if (located.missing.empty()) return located;
  // Keys without a row when the handles were returned may have one now.
  std::vector<int64_t> keys;
  keys.reserve(located.missing.size());
  for (const int64_t i : located.missing) keys.push_back(call.keys[i]);
  const Located now =
      locate(call.call.executor, keys.data(), static_cast<int64_t>(keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    located.rows[static_cast<size_t>(located.missing[i])] = now.rows[i];
  }
  std::vector<int64_t> missing;
  missing.reserve(now.missing.size());
  for (const int64_t i : now.missing) missing.push_back(located.missing[static_cast<size_t>(i)]);
  located.missing = std::move(missing);
  return located;
}

void Table::note_missing(Located& located) {
  const auto num_missing = std::count(located.rows.begin(), located.rows.end(), nullptr);
  located.missing.reserve(static_cast<size_t>(num_missing));
  for (size_t i = 0; num_missing > 0 && i < located.rows.size(); ++i) {
    if (located.rows[i] == nullptr) located.missing.push_back(static_cast<int64_t>(i));
  }
}

void Table::write_rows(const SparringUpsert& call, const Located& located) const {
  const uint64_t bytes = options_.row_bytes;
  const auto* const from = static_cast<const char*>(call.rows);
  border::parallel_for(call.call.executor, call.count, kUpsertGrain, [&](int64_t begin, int64_t end) {
    kernels_->scatter({located.rows.data() + begin, bytes,
                       from + static_cast<uint64_t>(begin) * call.row_stride, call.row_stride},
                      end - begin);
  });
}

void Table::check_room(int64_t count, uint64_t num_missing, const char* operation) const {
  const uint64_t size = contents_->index.size();
  if (num_missing <= layout_.max_rows - size) return;
  throw StatusError(SPARRING_CAPACITY,
                    std::string(operation) + " of " + std::to_string(count) + " keys, " +
                        std::to_string(num_missing) + " of them new: the table contains " +
                        std::to_string(size) + " of at most " + std::to_string(layout_.max_rows) +
                        " rows, and " + remedy_when_full(layout_));
}

void Table::upsert_growing(SparringUpsert& call, Located& located) {
  check_room(call.count, located.missing.size(), "upsert");
  policy_.begin_call();
  insert_missing(call, located);

  // No operation below can fail.
  write_rows(call, located);
  if (keeps_scores()) {
    update_scores(call.call.executor, call.keys, call.scores, call.count, &located.missing);
  }
}

template <class Call>
void Table::insert_missing(const Call& call, Located& located) {
  const std::vector<int64_t>& missing = located.missing;
  Index& index = contents_->index;
  Pool& rows = contents_->rows;
  rows.reserve(missing.size());
  size_t done = 0;
  try {
    for (; done < missing.size(); ++done) {
      if (done + kInsertedAhead < missing.size()) {
        const uint64_t coming = index.hash(call.keys[missing[done + kInsertedAhead]]);
        __builtin_prefetch(index.home(coming), 1);
      }
      const int64_t i = missing[done];
      const int64_t key = call.keys[i];
      const uint64_t hash = index.hash(key);
      const uint64_t* given = call.scores == nullptr ? nullptr : call.scores + i;
      // Duplicate keys violate the contract, but must not damage the table.
      if (const Place twin = index.locate(key, hash); twin.bucket != nullptr) {
        located.rows[static_cast<size_t>(i)] = rows.at(twin.bucket->row(twin.slot));
        continue;
      }
      // The row number is set after the last operation that can fail.
      const Place place = index.insert(key, hash, kNoRow, policy_.initial(given));
      place.bucket->row(place.slot) = rows.allocate();
      located.rows[static_cast<size_t>(i)] = rows.at(place.bucket->row(place.slot));
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

  // No operation below can fail, except the sink.
  policy_.begin_call();
  write_rows(call, located);
  update_scores(call.call.executor, call.keys, call.scores, call.count, &missing);
  for (size_t next = 0; next < missing.size(); ++next) {
    if (next + kInsertedAhead < missing.size()) {
      prefetch_scores(index.home(index.hash(call.keys[missing[next + kInsertedAhead]])));
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
  // As in insert_missing(): a duplicate key.
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
  void_handles();
  evicted.add(leaving.key, rows.at(number), leaving.score);
  if (place.bucket == index.home(hash)) {
    index.replace(place, key, hash, score);
  } else {
    index.erase(leaving.key, index.hash(leaving.key));
    index.insert(key, hash, number, score);
  }
  std::memcpy(rows.at(number), row, options_.row_bytes);
}

// In the bucket of the hash, or in the next bucket that is not empty.
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

void Table::update(SparringUpdate& call) {
  const std::unique_lock<ReaderWriterLock> lock(lock_);
  check_scores(call.scores);
  Located located = locate(call);
  if (call.admit != nullptr && !located.missing.empty()) keep_admitted(call, located);
  call.inserted = static_cast<int64_t>(located.missing.size());
  if (evicts()) {
    update_evicting(call, located);
  } else {
    update_growing(call, located);
  }
}

void Table::keep_admitted(const SparringUpdate& call, Located& located) {
  std::vector<int64_t>& missing = located.missing;
  std::vector<uint8_t> is_admitted(missing.size());
  const int32_t answer = call.admit(call.context, static_cast<int64_t>(missing.size()),
                                    missing.data(), is_admitted.data());
  if (answer != 0) {
    throw StatusError(SPARRING_INTERNAL,
                      "the admission of new keys returned " + std::to_string(answer) + ", expected 0");
  }
  size_t kept = 0;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (is_admitted[i] != 0) missing[kept++] = missing[i];
  }
  missing.resize(kept);
}

void Table::update_growing(SparringUpdate& call, Located& located) {
  check_room(call.count, located.missing.size(), "update");
  policy_.begin_call();
  insert_missing(call, located);

  // No operation below can fail.
  change_rows(call, located);
  if (keeps_scores()) {
    update_scores(call.call.executor, call.keys, call.scores, call.count, &located.missing);
  }
}

void Table::change_rows(const SparringUpdate& call, const Located& located) const {
  const uint64_t bytes = std::min<uint64_t>(options_.row_bytes, 1024);
  const std::vector<int64_t>& missing = located.missing;
  const SparringExecutor* const executor = call.call.executor;
  border::parallel_for(executor, call.count, kChangeGrain, [&](int64_t begin, int64_t end) {
    // Positions, rows and flags of new rows for two blocks: one is changed while the next is
    // prefetched.
    int64_t positions[2][kChangeBlock];
    void* pointers[2][kChangeBlock];
    uint8_t is_new[2][kChangeBlock];
    int64_t sizes[2] = {0, 0};
    const int64_t* const last_new = missing.data() + missing.size();
    const int64_t* next_new = std::lower_bound(missing.data(), last_new, begin);
    int64_t at = begin;
    const auto fill = [&](int side) __attribute__((always_inline)) {
      int64_t size = 0;
      for (; at < end && size < kChangeBlock; ++at) {
        char* const row = located.rows[static_cast<size_t>(at)];
        const bool is_fresh = next_new != last_new && *next_new == at;
        next_new += is_fresh;
        if (row == nullptr) continue;
        for (uint64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(row + byte, 1, 3);
        __builtin_prefetch(row + bytes - 1, 1, 3);
        positions[side][size] = at;
        pointers[side][size] = row;
        is_new[side][size++] = is_fresh;
      }
      sizes[side] = size;
    };
    fill(0);
    for (int side = 0; sizes[side] > 0; side ^= 1) {
      fill(side ^ 1);
      call.change(call.context, sizes[side], positions[side], pointers[side], is_new[side]);
    }
  });
}

void Table::update_evicting(SparringUpdate& call, const Located& located) {
  const std::vector<int64_t>& missing = located.missing;
  EvictionBuffer evicted(call.evicted, options_.row_bytes, missing.size());
  contents_->rows.reserve(
      std::min<uint64_t>(missing.size(), layout_.max_rows - contents_->index.size()));
  // New rows are initialized here, because they may be evicted before they are inserted.
  const uint64_t stride = (options_.row_bytes + 7) / 8 * 8;
  std::vector<uint64_t> made(stride / 8 * std::min<uint64_t>(kChangeBlock, missing.size()));

  // No operation below can fail, except the sink.
  policy_.begin_call();
  change_rows(call, located);
  update_scores(call.call.executor, call.keys, call.scores, call.count, &missing);
  for (size_t next = 0; next < missing.size(); next += kChangeBlock) {
    const size_t size = std::min<size_t>(kChangeBlock, missing.size() - next);
    void* pointers[kChangeBlock];
    uint8_t is_new[kChangeBlock];
    for (size_t i = 0; i < size; ++i) {
      pointers[i] = made.data() + i * (stride / 8);
      is_new[i] = 1;
      prefetch_scores(contents_->index.home(contents_->index.hash(call.keys[missing[next + i]])));
    }
    call.change(call.context, static_cast<int64_t>(size), missing.data() + next, pointers, is_new);
    for (size_t i = 0; i < size; ++i) {
      const int64_t position = missing[next + i];
      insert_or_evict(call.keys[position], static_cast<const char*>(pointers[i]),
                      call.scores == nullptr ? nullptr : call.scores + position, evicted);
    }
  }
  evicted.finish();
}

}  // namespace sparring::hkv
