#include "rows/select.h"

#include <algorithm>
#include <limits>

#include "rows/simd.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::check;
using border::check_given;
using border::refuse;

// Minimum number of scores per thread.
constexpr int64_t kGrain = 1 << 16;

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
  if (arguments.num_queries == 0) return;
  check_given(arguments.best != nullptr, "best");
  check_given(arguments.counts != nullptr, "counts");
  if (arguments.num_rows > 0) {
    check_given(arguments.ids != nullptr, "ids");
    check_given(arguments.scores != nullptr, "scores");
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

}  // namespace

void select(SparringPackedSelect& arguments) {
  check_arguments(arguments);
  const RowLoops& loops = row_loops();
  const int64_t num_rows = arguments.num_rows;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, num_rows));
  border::parallel_for(
      arguments.call.executor, arguments.num_queries, grain, [&](int64_t begin, int64_t end) {
        for (int64_t query = begin; query < end; ++query) {
          Kept kept(arguments, query);
          const float* const scores = arguments.scores + query * num_rows;
          for (int64_t at = 0; at < num_rows; ++at) {
            at += loops.first_at_least(scores + at, num_rows - at, kept.bound());
            if (at < num_rows) kept.offer({arguments.ids[at], scores[at], 0});
          }
          if (arguments.is_last != 0) kept.sort();
          arguments.counts[query] = kept.count();
        }
      });
}

}  // namespace sparring::packed
