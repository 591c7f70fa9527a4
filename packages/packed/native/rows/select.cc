#include "rows/select.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "rows/simd.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::check;
using border::check_given;
using border::refuse;

// Number of queries that are compared with a tile of rows, a multiple of every tile. With a dim of 64,
// they take half a MiB.
constexpr int64_t kGroup = 2040;

bool is_better(const SparringPackedBest& a, const SparringPackedBest& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

// The best of one query.
//
//   best:  [ k - 1 in any order | k-th best of the earlier scores | better than that, in any order )
//
// INVARIANT: if there are k or more, best[k - 1] is the worst of the first k. A score that is not
// better is not among the k best, and is not stored.
class Kept {
 public:
  Kept(const SparringPackedSelect& arguments, int64_t query)
      : best_(arguments.best + query * arguments.capacity),
        count_(arguments.counts[query]),
        k_(arguments.k),
        capacity_(arguments.capacity) {
    if (arguments.excluded_offsets == nullptr) return;
    first_excluded_ = arguments.excluded + arguments.excluded_offsets[query];
    last_excluded_ = arguments.excluded + arguments.excluded_offsets[query + 1];
  }

  int64_t count() const { return count_; }

  // Smaller scores are never stored.
  float bound() const {
    return count_ < k_ ? -std::numeric_limits<float>::infinity() : best_[k_ - 1].score;
  }

  void offer(const SparringPackedBest& one) {
    if (count_ >= k_ && !is_better(one, best_[k_ - 1])) return;
    // Few scores get here. Searching all ids of a block would take longer than multiplying it.
    if (std::binary_search(first_excluded_, last_excluded_, one.id)) return;
    best_[count_++] = one;
    if (count_ == k_ || count_ == capacity_) shrink();
  }

  void sort() {
    if (count_ > k_) shrink();
    std::sort(best_, best_ + count_, is_better);
  }

 private:
  void shrink() {
    std::nth_element(best_, best_ + k_ - 1, best_ + count_, is_better);
    count_ = k_;
  }

  SparringPackedBest* best_;
  int64_t count_;
  int64_t k_;
  int64_t capacity_;
  const int64_t* first_excluded_ = nullptr;
  const int64_t* last_excluded_ = nullptr;
};

void check_arguments(const SparringPackedSelect& arguments) {
  border::check_count(arguments.num_queries, "num_queries");
  border::check_count(arguments.num_rows, "num_rows");
  check(arguments.k >= 1, "k must be at least 1", arguments.k);
  check(arguments.capacity > arguments.k, "capacity must be greater than k", arguments.capacity);
  border::check_count(arguments.dim, "dim");
  if (arguments.num_queries == 0) return;
  check_given(arguments.queries != nullptr || arguments.dim == 0, "queries");
  check_given(arguments.best != nullptr, "best");
  check_given(arguments.counts != nullptr, "counts");
  if (arguments.num_rows > 0) {
    check_given(arguments.ids != nullptr, "ids");
    check_given(arguments.rows != nullptr, "rows");
  }
  for (int64_t query = 0; query < arguments.num_queries; ++query) {
    const int64_t count = arguments.counts[query];
    check(count >= 0 && count < arguments.capacity,
          "counts must be 0 in the first call, and must not be changed between calls", count);
  }
  const int64_t* const offsets = arguments.excluded_offsets;
  if (offsets == nullptr) return;
  if (offsets[0] < 0 || !std::is_sorted(offsets, offsets + arguments.num_queries + 1)) {
    refuse("excluded_offsets must not be negative, and must not decrease");
  }
  check_given(arguments.excluded != nullptr || offsets[arguments.num_queries] == 0, "excluded");
}

// Compares queries with all rows, without storing the scores.
//
//   queries  (tiles, dim, tile_queries): transposed once; a group of them stays in the L2 cache
//   columns  (dim, tile_rows): the rows of one tile, transposed; stays in the L1 cache
//
// Nearly all scores are below the bound of their query and never leave the registers.
class Comparison {
 public:
  Comparison(const SparringPackedSelect& arguments, int64_t begin, int64_t end)
      : arguments_(arguments), begin_(begin), count_(end - begin) {
    const auto num_tiles = static_cast<size_t>((count_ + tile_queries_ - 1) / tile_queries_);
    const auto tile = static_cast<size_t>(tile_queries_);
    const auto dim = static_cast<size_t>(arguments.dim);
    queries_.resize(num_tiles * dim * tile);
    // No score reaches the bound of the queries after the end.
    bounds_.assign(num_tiles * tile, std::numeric_limits<float>::infinity());
    for (int64_t query = 0; query < count_; ++query) {
      kept_.emplace_back(arguments, begin + query);
      bounds_[static_cast<size_t>(query)] = kept_.back().bound();
      float* const to = queries_.data() + (query / tile_queries_ * arguments.dim) * tile_queries_ +
                        query % tile_queries_;
      const float* const from = arguments.queries + (begin + query) * arguments.dim;
      for (int64_t d = 0; d < arguments.dim; ++d) to[d * tile_queries_] = from[d];
    }
    columns_.resize(dim * static_cast<size_t>(tile_rows_));
  }

  void run() {
    for (int64_t first = 0; first < arguments_.num_rows; first += tile_rows_) {
      const int64_t num_rows = std::min(tile_rows_, arguments_.num_rows - first);
      read_rows(first, num_rows);
      for (int64_t query = 0; query < count_; query += tile_queries_) compare_tile(first, query);
    }
    for (int64_t query = 0; query < count_; ++query) {
      Kept& kept = kept_[static_cast<size_t>(query)];
      if (arguments_.is_last != 0) kept.sort();
      arguments_.counts[begin_ + query] = kept.count();
    }
  }

 private:
  void read_rows(int64_t first, int64_t num_rows) {
    const int64_t dim = arguments_.dim;
    for (int64_t row = 0; row < tile_rows_; ++row) {
      // NaN is never selected.
      starts_[row] = row >= num_rows ? std::numeric_limits<float>::quiet_NaN()
                     : arguments_.starts != nullptr ? arguments_.starts[first + row]
                                                    : 0.0f;
    }
    const float* const from = arguments_.rows + first * dim;
    float* const to = columns_.data();
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t d = 0; d < dim; ++d) to[d * tile_rows_ + row] = from[row * dim + d];
    }
  }

  void compare_tile(int64_t first, int64_t query) {
    float* const bounds = bounds_.data() + query;
    if (!loops_.multiply({queries_.data() + query * arguments_.dim, columns_.data(), starts_, bounds,
                          arguments_.dim, hits_, scores_})) {
      return;
    }
    const int64_t num_queries = std::min(tile_queries_, count_ - query);
    for (int64_t i = 0; i < num_queries; ++i) {
      if (hits_[i] == 0) continue;
      Kept& kept = kept_[static_cast<size_t>(query + i)];
      for (uint32_t hits = hits_[i]; hits != 0; hits &= hits - 1) {
        const int row = __builtin_ctz(hits);
        kept.offer({arguments_.ids[first + row], scores_[i * tile_rows_ + row], 0});
      }
      bounds[i] = kept.bound();
    }
  }

  const SparringPackedSelect& arguments_;
  const RowLoops& loops_ = row_loops();
  const int64_t tile_queries_ = loops_.tile_queries;
  const int64_t tile_rows_ = loops_.tile_rows;
  const int64_t begin_;
  const int64_t count_;
  std::vector<Kept> kept_;
  std::vector<float> queries_;
  std::vector<float> bounds_;
  std::vector<float> columns_;
  float starts_[kMaxTileRows];
  uint32_t hits_[kMaxTileQueries];
  float scores_[kMaxTileQueries * kMaxTileRows];
};

}  // namespace

void select(SparringPackedSelect& arguments) {
  check_arguments(arguments);
  border::parallel_for(
      arguments.call.executor, arguments.num_queries, row_loops().tile_queries,
      [&](int64_t begin, int64_t end) {
        for (; begin < end; begin += kGroup) {
          Comparison(arguments, begin, std::min(end, begin + kGroup)).run();
        }
      });
}

}  // namespace sparring::packed
