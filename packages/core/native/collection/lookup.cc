#include "collection/lookup.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>

#include "execution/senders.h"
#include "kernels/halves.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::collection {

using execution::bulk_chunked;
using execution::executor_scheduler;
using execution::schedule;
using execution::sync_wait;

namespace {

// Ids per piece of work: large enough that starting a visit is negligible, and small enough
// that pieces are distributed evenly over the threads.
constexpr int64_t kPieceIds = 4096;
// Number of initial values that are computed at a time.
constexpr int64_t kMadeRows = 32;

struct Piece {
  size_t feature;
  int64_t begin;  // bags
  int64_t end;
};

template <class T>
void cut(const std::vector<FeatureLookup<T>>& features, std::vector<Piece>& pieces) {
  for (size_t number = 0; number < features.size(); ++number) {
    const FeatureIds<T>& input = features[number].input;
    for (int64_t begin = 0; begin < input.count;) {
      int64_t end = std::min(begin + kPieceIds, input.count);
      if (input.offsets != nullptr && input.offsets[end] - input.offsets[begin] > kPieceIds) {
        const int64_t* last = std::upper_bound(input.offsets + begin + 1, input.offsets + end,
                                               input.offsets[begin] + kPieceIds);
        end = std::max(begin + 1, static_cast<int64_t>(last - input.offsets) - 1);
      }
      pieces.push_back({number, begin, end});
      begin = end;
    }
  }
}

// The loops over embeddings.
template <class T>
struct ShownLoops {
  decltype(kernels::RowKernels<T>::pool_shown) pool_shown;
  decltype(kernels::RowKernels<T>::gather_shown) gather_shown;

  static ShownLoops of(kernels::RowType type) {
    if constexpr (std::is_same_v<T, float>) {
      if (kernels::is_narrow(type)) {
        const kernels::NarrowKernels& loops = kernels::narrow_kernels(type);
        return {loops.pool_shown, loops.gather_shown};
      }
    }
    return of_embeddings();
  }

  // Loops over embeddings of the computing type.
  static ShownLoops of_embeddings() {
    const kernels::RowKernels<T>& loops = kernels::row_kernels<T>();
    return {loops.pool_shown, loops.gather_shown};
  }
};

// Receives the rows of one piece from a storage.
template <class T>
class Reader {
 public:
  Reader(const FeatureLookup<T>& feature, const Piece& piece)
      : feature_(feature),
        loops_(feature.known.embeddings != nullptr
                   ? ShownLoops<T>::of_embeddings()
                   : ShownLoops<T>::of(feature.input.table->layout.type)),
        dim_(feature.input.table->layout.dim),
        embedding_bytes_(kernels::embedding_bytes(feature.input.table->layout.type, dim_)),
        begin_(piece.begin),
        first_id_(first_id(feature.input, piece.begin)),
        bag_(piece.begin) {}

  static int64_t first_id(const FeatureIds<T>& input, int64_t bag) {
    return input.offsets != nullptr ? input.offsets[bag] : bag;
  }

  static int32_t show(void* context, int64_t begin, int64_t count, const void* const* rows) {
    auto& self = *static_cast<Reader*>(context);
    for (int64_t at = 0; at < count; at += kMadeRows) {
      const int64_t part = std::min(kMadeRows, count - at);
      self.take(begin + at, part, self.with_initial(begin + at, part, rows + at));
    }
    return 0;
  }

  // Bags after the last id are empty.
  void finish(int64_t end) {
    const FeatureIds<T>& input = feature_.input;
    if (input.offsets == nullptr) return;
    for (int64_t bag = bag_; bag < end; ++bag) {
      if (input.offsets[bag] == input.offsets[bag + 1]) {
        std::fill_n(feature_.out + bag * feature_.stride, dim_, T{0});
      }
    }
  }

 private:
  void take(int64_t begin, int64_t count, const void* const* rows) {
    const FeatureIds<T>& input = feature_.input;
    if (input.offsets == nullptr) {
      loops_.gather_shown(rows, count, dim_, feature_.out + (begin_ + begin) * feature_.stride,
                          feature_.stride);
      return;
    }
    bag_ = loops_.pool_shown({rows, input.offsets, input.weights, feature_.out, feature_.stride,
                              first_id_ + begin, count, bag_, dim_, input.is_mean});
  }

  // The same rows, with initial values for missing ones.
  const void* const* with_initial(int64_t begin, int64_t count, const void* const* rows) {
    const auto is_missing = [](const void* row) { return row == nullptr; };
    if (std::none_of(rows, rows + count, is_missing)) return rows;
    if (made_ == nullptr) {
      made_ = std::make_unique_for_overwrite<std::byte[]>(
          static_cast<size_t>(kMadeRows * embedding_bytes_));
    }
    int64_t keys[kMadeRows];
    const uint8_t found[kMadeRows] = {};
    int64_t num_made = 0;
    for (int64_t i = 0; i < count; ++i) {
      shown_[i] = rows[i];
      if (rows[i] != nullptr) continue;
      keys[num_made] = feature_.input.ids[first_id_ + begin + i];
      shown_[i] = made_.get() + num_made * embedding_bytes_;
      ++num_made;
    }
    const auto layout = kernels::make_row_layout(feature_.input.table->layout.type, dim_, 0);
    kernels::initialize(nullptr, feature_.input.table->initializer,
                        {layout, keys, found, num_made, nullptr, made_.get()});
    return shown_;
  }

  const FeatureLookup<T>& feature_;
  const ShownLoops<T> loops_;
  const int64_t dim_;
  const int64_t embedding_bytes_;
  const int64_t begin_;
  const int64_t first_id_;
  int64_t bag_;
  std::unique_ptr<std::byte[]> made_;  // (kMadeRows) embeddings
  const void* shown_[kMadeRows];
};

// Shows the embeddings of `count` ids from `first` to the reader.
template <class T>
void show_embeddings(const FeatureLookup<T>& feature, int64_t first, int64_t count,
                     Reader<T>& reader) {
  const int64_t dim = feature.input.table->layout.dim;
  const auto* const embeddings = static_cast<const T*>(feature.known.embeddings);
  const uint32_t* const inverse =
      feature.known.inverse + (first - Reader<T>::first_id(feature.input, 0));
  const void* rows[kMadeRows];
  for (int64_t at = 0; at < count; at += kMadeRows) {
    const int64_t part = std::min(kMadeRows, count - at);
    for (int64_t i = 0; i < part; ++i) rows[i] = embeddings + inverse[at + i] * dim;
    Reader<T>::show(&reader, at, part, rows);
  }
}

template <class T>
void read(const FeatureLookup<T>& feature, const Piece& piece) {
  Reader<T> reader(feature, piece);
  const FeatureIds<T>& input = feature.input;
  const int64_t first = Reader<T>::first_id(input, piece.begin);
  const int64_t count = Reader<T>::first_id(input, piece.end) - first;
  if (count > 0) {
    if (feature.known.embeddings != nullptr) {
      show_embeddings(feature, first, count, reader);
    } else if (input.table->storage == nullptr) {
      const void* none[kMadeRows] = {};
      for (int64_t at = 0; at < count; at += kMadeRows) {
        Reader<T>::show(&reader, at, std::min(kMadeRows, count - at), none);
      }
    } else {
      const kernels::RowLayout& layout = input.table->layout;
      SparringVisit visit{};
      visit.count = count;
      visit.keys = input.ids + first;
      visit.columns = {0, static_cast<uint64_t>(kernels::embedding_bytes(layout.type, layout.dim))};
      visit.show = &Reader<T>::show;
      visit.context = &reader;
      std::unique_ptr<const void*[]> handles;
      if (feature.known.inverse != nullptr) {
        handles = std::make_unique_for_overwrite<const void*[]>(static_cast<size_t>(count));
        const uint32_t* const inverse =
            feature.known.inverse + (first - Reader<T>::first_id(input, 0));
        for (int64_t i = 0; i < count; ++i) handles[i] = feature.known.handles[inverse[i]];
        visit.handles = handles.get();
        visit.generation = feature.known.generation;
      }
      input.table->storage->visit(visit);
    }
  }
  reader.finish(piece.end);
}

}  // namespace

template <class T>
void look_up(const SparringExecutor* executor, const std::vector<FeatureLookup<T>>& features) {
  std::vector<Piece> pieces;
  cut(features, pieces);
  int64_t num_bytes = 0;
  for (const FeatureLookup<T>& feature : features) {
    const FeatureIds<T>& input = feature.input;
    num_bytes += (Reader<T>::first_id(input, input.count) - Reader<T>::first_id(input, 0)) *
                 input.table->layout.dim * static_cast<int64_t>(sizeof(T));
  }
  // Pieces of one small batch are too small to wake a thread for.
  const int64_t grain =
      std::max<int64_t>(1, static_cast<int64_t>(pieces.size()) * kernels::kPieceBytes /
                               std::max<int64_t>(1, num_bytes));
  sync_wait(schedule(executor_scheduler(executor)) |
            bulk_chunked(static_cast<int64_t>(pieces.size()), grain,
                         [&](int64_t begin, int64_t end) {
                           for (int64_t i = begin; i < end; ++i) {
                             const Piece& piece = pieces[static_cast<size_t>(i)];
                             read(features[piece.feature], piece);
                           }
                         }));
}

template void look_up(const SparringExecutor*, const std::vector<FeatureLookup<float>>&);
template void look_up(const SparringExecutor*, const std::vector<FeatureLookup<double>>&);

}  // namespace sparring::collection
