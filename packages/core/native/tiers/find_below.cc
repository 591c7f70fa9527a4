#include "tiers/find_below.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>

#include "execution/senders.h"

namespace sparring::tiers {

using execution::bulk_chunked;
using execution::executor_scheduler;
using execution::schedule;
using execution::sync_wait;
using execution::then;

namespace {

using Clock = std::chrono::steady_clock;

// Fewer keys than this take less time than waking a thread.
constexpr int64_t kGrain = 1024;
// Number of keys per chunk: large enough that starting a find is negligible, and small enough that
// their rows stay in the L2 cache.
constexpr int64_t kMostKeys = 2048;
constexpr int64_t kLeastKeys = 32;
constexpr int64_t kChunkBytes = 256 * 1024;
// For at least this many keys, a sample of one key in kSampled may be looked up in the filters; see
// PieceFinder::trusts.
constexpr int64_t kManyKeys = 512;
constexpr int64_t kSampled = 64;
constexpr int64_t kMostPatience = int64_t{1} << 60;

constexpr int64_t kPlacesAhead = 16;

// Copies row i of `from` to places[i].
using Place = void (*)(const char* from, uint64_t from_stride, const int64_t* places, int64_t count,
                       const Asked& asked);

template <size_t kBytes>
void place(const char* from, uint64_t from_stride, const int64_t* places, int64_t count,
           const Asked& asked) {
  char* const to = asked.rows;
  const uint64_t stride = asked.row_stride;
  const uint64_t bytes = kBytes != 0 ? kBytes : asked.columns.end - asked.columns.begin;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kPlacesAhead < count) {
      char* const next = to + static_cast<uint64_t>(places[i + kPlacesAhead]) * stride;
      for (uint64_t byte = 0; byte < bytes && byte < 512; byte += 64) __builtin_prefetch(next + byte, 1);
    }
    std::memcpy(to + static_cast<uint64_t>(places[i]) * stride,
                from + static_cast<uint64_t>(i) * from_stride, bytes);
  }
}

// Embeddings of 16 to 128 float32 are copied without a call per row.
Place place_for(uint64_t bytes) {
  switch (bytes) {
    case 64:
      return place<64>;
    case 128:
      return place<128>;
    case 256:
      return place<256>;
    case 512:
      return place<512>;
    default:
      return place<0>;
  }
}

// The result of one piece of the loop, at the beginning of its part of the shared arrays.
struct Piece {
  int64_t begin;
  int64_t num_missing;
  int64_t num_found;
};

// Executes the steps for one piece, with buffers for one chunk.
class PieceFinder {
 public:
  PieceFinder(const LowerTier& tier, const Asked& asked, int64_t* missing, const Staged& staged)
      : tier_(tier.handle),
        filters_(tier.filters),
        history_(tier.history),
        asked_(asked),
        missing_(missing),
        staged_(staged),
        columns_(staged.rows != nullptr ? SparringColumns{0, tier_.row_bytes()} : asked.columns),
        row_bytes_(columns_.end - columns_.begin),
        place_(place_for(asked.columns.end - asked.columns.begin)),
        chunk_keys_(std::clamp(kChunkBytes / static_cast<int64_t>(row_bytes_), kLeastKeys,
                               kMostKeys)) {}

  void run(int64_t count) {
    // Chunks of equal size, because a short rest would be too small for a sample.
    const int64_t num_chunks = (count + chunk_keys_ - 1) / chunk_keys_;
    const int64_t size = num_chunks == 0 ? 0 : (count + num_chunks - 1) / num_chunks;
    for (int64_t at = 0; at < count; at += size) {
      const auto start = Clock::now();
      const int64_t num_missing_before = num_missing;
      const int64_t num_keys = std::min(size, count - at);
      const int64_t num_asked = choose(at, num_keys);
      const auto begun = Clock::now();
      if (num_asked > 0) find(num_asked);
      const auto ended = Clock::now();
      other_time += begun - start;
      tier_time += ended - begun;
      if (num_asked > 0) take(num_asked);
      note(num_keys, num_missing == num_missing_before);
      other_time += Clock::now() - ended;
    }
  }

  int64_t num_missing = 0;
  int64_t num_found = 0;
  int64_t num_skipped = 0;
  Clock::duration tier_time{};
  Clock::duration other_time{};

 private:
  // Stores the keys to find in the tier in keys_, and their positions; returns their number.
  int64_t choose(int64_t at, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      places_[i] = missing_[at + i];
      keys_[i] = asked_.keys[places_[i]];
    }
    is_trusting_ = trusts(count);
    if (is_trusting_) return count;
    ask_filters(keys_, count);
    int64_t num_asked = 0;
    for (int64_t i = 0; i < count; ++i) {
      // The overwritten positions have been read already, because there are never more of them.
      missing_[num_missing] = places_[i];
      num_missing += flags_[i] == 0;
      keys_[num_asked] = keys_[i];
      places_[num_asked] = places_[i];
      num_asked += flags_[i];
    }
    num_skipped += count - num_asked;
    return num_asked;
  }

  // Whether to find all keys_ in the tier, without the filters.
  //
  // For tiers in memory, a lookup in the filters takes as long as a find in the tier, and is useless
  // if the tier has all keys. Therefore, after many consecutive found keys, only a sample of the next
  // keys is looked up in the filters, and the other keys only if the filters exclude a key of the
  // sample. Of n keys, u of which are missing, the tier is then searched for all with a probability of
  // at most (1 - u / n)^(n / 64), so on average for at most 64 / e = 24 missing keys. Each such case
  // doubles the number of found keys that the next one requires, so that even rare missing keys soon
  // cause no more useless finds.
  bool trusts(int64_t count) {
    if (count < kManyKeys || history_.num_there.load(std::memory_order_relaxed) <
                                 history_.patience.load(std::memory_order_relaxed)) {
      return false;
    }
    int64_t sample[kMostKeys / kSampled + 1];
    int64_t num_sampled = 0;
    for (int64_t i = 0; i < count; i += kSampled) sample[num_sampled++] = keys_[i];
    ask_filters(sample, num_sampled);
    return std::find(flags_, flags_ + num_sampled, 0) == flags_ + num_sampled;
  }

  // Concurrent threads may lose an update. Then the next keys are trusted once too early or too
  // late.
  void note(int64_t count, bool is_whole) {
    const int64_t patience = history_.patience.load(std::memory_order_relaxed);
    if (!is_whole && is_trusting_) {
      history_.patience.store(std::min(2 * patience, kMostPatience), std::memory_order_relaxed);
    }
    const int64_t before = history_.num_there.load(std::memory_order_relaxed);
    const int64_t after = is_whole ? std::min(before + count, patience) : 0;
    if (after != before) history_.num_there.store(after, std::memory_order_relaxed);
  }

  // flags_: 1 if one of the filters may contain the key.
  void ask_filters(const int64_t* keys, int64_t count) {
    filters_.front()->contains(nullptr, keys, count, flags_);
    for (size_t part = 1; part < filters_.size(); ++part) {
      filters_[part]->contains(nullptr, keys, count, other_flags_);
      for (int64_t i = 0; i < count; ++i) flags_[i] |= other_flags_[i];
    }
  }

  char* room() {
    if (staged_.rows != nullptr) return staged_.rows + num_found * static_cast<int64_t>(row_bytes_);
    if (!scratch_) {
      scratch_ = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(chunk_keys_) *
                                                        static_cast<size_t>(row_bytes_));
    }
    return scratch_.get();
  }

  void find(int64_t num_asked) {
    SparringFind find{};
    find.count = num_asked;
    find.keys = keys_;
    find.columns = columns_;
    find.rows = room();
    find.row_stride = row_bytes_;
    find.found = flags_;
    tier_.find(find);
  }

  void take(int64_t num_asked) {
    char* const rows = room();
    const bool is_whole = std::memchr(flags_, 0, static_cast<size_t>(num_asked)) == nullptr;
    const int64_t num_taken = is_whole ? num_asked : close_ranks(rows, num_asked);
    for (int64_t i = 0; i < num_taken; ++i) asked_.found[places_[i]] = 1;
    const uint64_t first_byte = staged_.rows != nullptr ? asked_.columns.begin : 0;
    place_(rows + first_byte, row_bytes_, places_, num_taken, asked_);
    std::copy_n(keys_, num_taken, staged_.keys + num_found);
    num_found += num_taken;
  }

  // Moves the keys that the tier has, their rows and positions to the front; returns their number.
  int64_t close_ranks(char* rows, int64_t num_asked) {
    int64_t num_taken = 0;
    for (int64_t i = 0; i < num_asked; ++i) {
      if (flags_[i] == 0) {
        missing_[num_missing++] = places_[i];
        continue;
      }
      if (num_taken != i) {
        std::memcpy(rows + static_cast<uint64_t>(num_taken) * row_bytes_,
                    rows + static_cast<uint64_t>(i) * row_bytes_, row_bytes_);
        places_[num_taken] = places_[i];
        keys_[num_taken] = keys_[i];
      }
      ++num_taken;
    }
    return num_taken;
  }

  const abi::StorageHandle& tier_;
  const std::vector<const kernels::BlockedBloom*>& filters_;
  History& history_;
  const Asked asked_;
  int64_t* const missing_;
  const Staged staged_;
  const SparringColumns columns_;  // that are read
  const uint64_t row_bytes_;       // of these
  const Place place_;
  const int64_t chunk_keys_;
  bool is_trusting_ = false;  // whether all keys of the chunk are found without the filters
  std::unique_ptr<char[]> scratch_;
  int64_t keys_[kMostKeys];
  int64_t places_[kMostKeys];
  uint8_t flags_[kMostKeys];
  uint8_t other_flags_[kMostKeys];
};

// The results of the pieces of a loop in shared arrays. Each piece reserves a part of the arrays,
// and at the end the results are compacted.
class Results {
 public:
  // Reserves a part of the shared arrays; returns where it begins.
  int64_t take(int64_t count) { return num_taken_.fetch_add(count, std::memory_order_relaxed); }

  void add(int64_t begin, const PieceFinder& finder, Clock::duration first_time) {
    const std::lock_guard lock(mutex_);
    pieces_.push_back({begin, finder.num_missing, finder.num_found});
    num_skipped_ += finder.num_skipped;
    tier_time_ += finder.tier_time;
    first_time_ += first_time;
    all_time_ += first_time + finder.tier_time + finder.other_time;
  }

  int64_t num_taken() const { return num_taken_.load(std::memory_order_relaxed); }

  // Threads run concurrently, so the tier's share of their time is its share of the call's time.
  double seconds_of(Clock::duration time, Clock::duration call) const {
    if (all_time_.count() == 0) return 0;
    return std::chrono::duration<double>(call).count() * static_cast<double>(time.count()) /
           static_cast<double>(all_time_.count());
  }
  double first_seconds(Clock::duration call) const { return seconds_of(first_time_, call); }

  Below together(int64_t* missing, const Staged& staged, int64_t row_bytes, Clock::duration call) {
    std::sort(pieces_.begin(), pieces_.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    Below below;
    int64_t num_missing = 0;
    for (const Piece& piece : pieces_) {
      std::copy_n(missing + piece.begin, piece.num_missing, missing + num_missing);
      num_missing += piece.num_missing;
      if (piece.begin != below.num_found) {
        std::copy_n(staged.keys + piece.begin, piece.num_found, staged.keys + below.num_found);
        if (staged.rows != nullptr) {
          std::memmove(staged.rows + below.num_found * row_bytes,
                       staged.rows + piece.begin * row_bytes,
                       static_cast<size_t>(piece.num_found * row_bytes));
        }
      }
      below.num_found += piece.num_found;
    }
    below.num_skipped = num_skipped_;
    below.seconds = seconds_of(tier_time_, call);
    return below;
  }

 private:
  std::atomic<int64_t> num_taken_{0};
  std::mutex mutex_;
  std::vector<Piece> pieces_;
  int64_t num_skipped_ = 0;
  Clock::duration first_time_{};
  Clock::duration tier_time_{};
  Clock::duration all_time_{};
};

Staged part_of(const Staged& staged, int64_t begin, int64_t row_bytes) {
  return {staged.keys + begin,
          staged.rows != nullptr ? staged.rows + begin * row_bytes : nullptr};
}

// Finds a range of keys in the first tier; returns the number of missing keys.
int64_t ask_first(const abi::StorageHandle& first, const Asked& asked, int64_t begin, int64_t end,
                  int64_t* missing) {
  int64_t num_missing = 0;
  for (int64_t at = begin; at < end; at += kGrain) {
    SparringFind find{};
    find.count = std::min(kGrain, end - at);
    find.keys = asked.keys + at;
    find.columns = asked.columns;
    find.rows = asked.rows + static_cast<uint64_t>(at) * asked.row_stride;
    find.row_stride = asked.row_stride;
    find.found = asked.found + at;
    first.find(find);
    for (int64_t i = at; i < at + find.count; ++i) {
      missing[num_missing] = i;
      num_missing += asked.found[i] == 0;
    }
  }
  return num_missing;
}

}  // namespace

Below find_below(const SparringExecutor* executor, const LowerTier& tier, const Asked& asked,
                 int64_t* missing, int64_t num_missing, const Staged& staged) {
  const auto start = Clock::now();
  const auto row_bytes = static_cast<int64_t>(tier.handle.row_bytes());
  Results results;
  auto find = [&](int64_t begin, int64_t end) {
    PieceFinder finder(tier, asked, missing + begin, part_of(staged, begin, row_bytes));
    finder.run(end - begin);
    results.add(begin, finder, {});
  };
  auto join = [&] { return results.together(missing, staged, row_bytes, Clock::now() - start); };
  auto [below] = sync_wait(schedule(executor_scheduler(executor)) |
                           bulk_chunked(num_missing, kGrain, find) | then(join))
                     .value();
  return below;
}

Through find_first(const SparringExecutor* executor, const abi::StorageHandle& first,
                   const LowerTier& tier, const Asked& asked, int64_t count, int64_t* missing,
                   const Staged& staged) {
  const auto start = Clock::now();
  const auto row_bytes = static_cast<int64_t>(tier.handle.row_bytes());
  Results results;
  auto find = [&](int64_t begin, int64_t end) {
    const auto began = Clock::now();
    const auto places = std::make_unique_for_overwrite<int64_t[]>(static_cast<size_t>(end - begin));
    const int64_t num_places = ask_first(first, asked, begin, end, places.get());
    const auto ended = Clock::now();
    const int64_t taken = results.take(num_places);
    std::copy_n(places.get(), num_places, missing + taken);
    PieceFinder finder(tier, asked, missing + taken, part_of(staged, taken, row_bytes));
    finder.run(num_places);
    results.add(taken, finder, ended - began);
  };
  auto join = [&] {
    const auto time = Clock::now() - start;
    return Through{results.first_seconds(time), results.num_taken(),
                   results.together(missing, staged, row_bytes, time)};
  };
  auto [through] = sync_wait(schedule(executor_scheduler(executor)) |
                             bulk_chunked(count, kGrain, find) | then(join))
                       .value();
  return through;
}

}  // namespace sparring::tiers
