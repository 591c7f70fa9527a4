#include "device_kernels/rows.h"

#include <algorithm>
#include <type_traits>

#include "device/move_rows.h"
#include "device_kernels/dot.h"
#include "device_kernels/elements.h"
#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

using device::address;

template <class Word>
struct Gathers {
  static constexpr unsigned block_threads = kBlockThreads;
  const char* rows;
  const int64_t* inverse;
  char* out;
  uint64_t count;
  uint64_t row_bytes;
  device::RowShape shape;

  SPARRING_DEVICE void operator()(const Block& block) const {
    const Warp warp = block.warp();
    for (uint64_t first = block.warp_in_grid() * device::warp_lanes; first < count;
         first += block.grid_warps() * device::warp_lanes) {
      const uint64_t i = first + warp.lane();
      const uint64_t left = count - first;
      const char* const from =
          i < count ? rows + static_cast<uint64_t>(inverse[i]) * row_bytes : nullptr;
      device::move_rows<Word, device::Reading::kAgain>(
          warp, shape, left < device::warp_lanes ? static_cast<unsigned>(left) : device::warp_lanes,
          from, i < count ? out + i * row_bytes : nullptr);
    }
  }
};

// The source of the rows of a pool: read(i, column) returns the elements of the row of id i from
// `column` on. If there is no row, is_there(i) is false and make() returns its initial elements.
template <class T>
struct DenseRows {
  using Computing = T;
  static constexpr bool kMayMiss = false;
  const T* rows;
  const int64_t* inverse;
  uint64_t dim;

  template <unsigned kCount>
  SPARRING_DEVICE Elements<T, kCount> read(uint64_t i, uint64_t column) const {
    return Elements<T, kCount>::load(rows + static_cast<uint64_t>(inverse[i]) * dim + column);
  }
};

template <class Stored_>
struct ShownRows {
  using Computing = typename Stored<Stored_>::Computing;
  static constexpr bool kMayMiss = true;
  const void* const* rows;
  const int64_t* ids;
  InitialValues initial;

  SPARRING_DEVICE bool is_there(uint64_t i) const { return rows[i] != nullptr; }

  template <unsigned kCount>
  SPARRING_DEVICE Elements<Computing, kCount> read(uint64_t i, uint64_t column) const {
    Elements<Computing, kCount> result{};
    if (rows[i] == nullptr) return result;
    const auto* from = static_cast<const Stored_*>(rows[i]) + column;
    Elements<Stored_, kCount> read;
    // A storage guarantees only that rows are aligned to their elements. All rows of a storage have
    // the same alignment, so lanes do not diverge.
    if (reinterpret_cast<uintptr_t>(from) % sizeof(read) == 0) {
      read = Elements<Stored_, kCount>::load(from);
    } else {
      for (unsigned k = 0; k < kCount; ++k) read.values[k] = from[k];
    }
    for (unsigned k = 0; k < kCount; ++k) result.values[k] = Stored<Stored_>::load(read.values[k]);
    return result;
  }

  template <unsigned kCount>
  SPARRING_DEVICE Elements<Computing, kCount> make(uint64_t i, uint64_t column) const {
    static_assert(kCount <= 4);
    Elements<Computing, kCount> result;
    const auto made = initial_columns<Stored_>(initial, ids[i], static_cast<uint32_t>(column / 4));
    for (unsigned k = 0; k < kCount; ++k)
      result.values[k] = Stored<Stored_>::load(made.values[column % 4 + k]);
    return result;
  }
};

// A tile processes one bag, and each lane kCount columns; the rows of a bag are added in the
// order of its ids.
template <class Rows, unsigned kCount, unsigned kLanes, bool kHasWeights>
struct Pools {
  using T = typename Rows::Computing;
  static constexpr unsigned kInFlight = 4;
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr bool is_batched = true;
  Rows rows;
  const int64_t* offsets;
  const T* weights;
  T* out;
  uint64_t num_bags;
  uint64_t dim;
  bool is_mean;

  SPARRING_DEVICE void operator()(const Block& block) const {
    const unsigned lane = Tile<kLanes>(block).lane();
    for (uint64_t bag = Tile<kLanes>::in_grid(block); bag < num_bags;
         bag += Tile<kLanes>::count(block)) {
      const auto begin = static_cast<uint64_t>(offsets[bag]);
      const auto end = static_cast<uint64_t>(offsets[bag + 1]);
      for (uint64_t column = lane * kCount; column < dim; column += kLanes * kCount)
        pool_columns(bag, begin, end, column);
    }
  }
  SPARRING_DEVICE void pool_columns(uint64_t bag, uint64_t begin, uint64_t end,
                                    uint64_t column) const {
    Elements<T, kCount> sum{};
    // Several loads are in flight before the first row is added, because rows are scattered.
    for (uint64_t i = begin; i < end; i += kInFlight) {
      Elements<T, kCount> pieces[kInFlight] = {};
      SPARRING_UNROLL
      for (unsigned k = 0; k < kInFlight; ++k) {
        if (i + k < end) pieces[k] = rows.template read<kCount>(i + k, column);
      }
      if constexpr (Rows::kMayMiss) make_missing(pieces, i, end, column);
      SPARRING_UNROLL
      for (unsigned k = 0; k < kInFlight; ++k) {
        if (i + k < end) add(&sum, pieces[k], i + k);
      }
    }
    if (is_mean && end > begin) {
      for (unsigned k = 0; k < kCount; ++k)
        sum.values[k] = sum.values[k] / static_cast<T>(end - begin);
    }
    sum.store(out + bag * dim + column);
  }
  // Rare and long, so it is not inlined, and pieces stay in registers.
  SPARRING_DEVICE void make_missing(Elements<T, kCount> (&pieces)[kInFlight], uint64_t i,
                                    uint64_t end, uint64_t column) const {
    SPARRING_NO_UNROLL
    for (unsigned which = 0; which < kInFlight && i + which < end; ++which) {
      if (rows.is_there(i + which)) continue;
      const Elements<T, kCount> made = rows.template make<kCount>(i + which, column);
      SPARRING_UNROLL
      for (unsigned k = 0; k < kInFlight; ++k) {
        if (k == which) pieces[k] = made;
      }
    }
  }
  SPARRING_DEVICE void add(Elements<T, kCount>* sum, const Elements<T, kCount>& piece,
                           uint64_t i) const {
    for (unsigned k = 0; k < kCount; ++k) {
      if constexpr (kHasWeights) {
        sum->values[k] = sum->values[k] + piece.values[k] * weights[i];
      } else {
        sum->values[k] = sum->values[k] + piece.values[k];
      }
    }
  }
};

// `rows` whose elements can be read kCount at a time.
template <unsigned kCount, class Rows, class T>
void launch_pool(Device& device, Stream stream, const Rows& rows, const int64_t* offsets,
                 const T* weights, T* out, uint64_t num_bags, uint64_t dim, bool is_mean) {
  with_tile(static_cast<int64_t>(dim / kCount), [&]<unsigned kLanes>() {
    const device::Shape grid = grid_for(device, num_bags * kLanes);
    if (weights == nullptr) {
      launch(device, grid, stream,
             Pools<Rows, kCount, kLanes, false>{rows, offsets, weights, out, num_bags, dim,
                                                is_mean});
    } else {
      launch(device, grid, stream,
             Pools<Rows, kCount, kLanes, true>{rows, offsets, weights, out, num_bags, dim,
                                               is_mean});
    }
  });
}

template <class T>
struct WeightGradients {
  static constexpr unsigned block_threads = kBlockThreads;
  PoolWeightGradient<T> a;

  SPARRING_DEVICE void operator()(const Block& block) const {
    using Team = DotTile<T>;
    const Team tile(block);
    const auto count = static_cast<uint64_t>(a.count);
    const uint64_t rounds = rounds_for(count, Team::count(block));
    uint64_t i = Team::in_grid(block);
    for (uint64_t round = 0; round < rounds; ++round, i += Team::count(block)) {
      const bool is_there = i < count;
      const uint64_t bag = is_there ? bag_of(static_cast<int64_t>(i)) : 0;
      const T product = dot(tile, a.gradient + bag * static_cast<uint64_t>(a.dim),
                            is_there ? a.rows + a.inverse[i] * a.dim : a.rows,
                            is_there ? a.dim : 0);
      if (!is_there || tile.lane() != 0) continue;
      a.out[i] = a.is_mean ? product / static_cast<T>(a.offsets[bag + 1] - a.offsets[bag]) : product;
    }
  }
  // The bag of id i: the last one that starts at or before it.
  SPARRING_DEVICE uint64_t bag_of(int64_t i) const {
    int64_t low = 0;
    int64_t high = a.num_bags;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (a.offsets[middle] <= i) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return static_cast<uint64_t>(low);
  }
};

}  // namespace

void gather(Device& device, Stream stream, const Gather& arguments) {
  if (arguments.count == 0 || arguments.row_bytes == 0) return;
  const auto row_bytes = static_cast<uint64_t>(arguments.row_bytes);
  const auto count = static_cast<uint64_t>(arguments.count);
  const unsigned word = device::word_bytes({address(arguments.rows), address(arguments.out), row_bytes});
  device::with_word(word, [&]<class Word>() {
    launch(device, grid_for(device, count), stream,
           Gathers<Word>{static_cast<const char*>(arguments.rows), arguments.inverse,
                         static_cast<char*>(arguments.out), count, row_bytes,
                         device::row_shape<Word>(row_bytes)});
  });
}

template <class T>
void pool(Device& device, Stream stream, const Pool<T>& arguments) {
  if (arguments.num_bags == 0 || arguments.dim == 0) return;
  const auto dim = static_cast<uint64_t>(arguments.dim);
  const auto num_bags = static_cast<uint64_t>(arguments.num_bags);
  const DenseRows<T> rows{arguments.rows, arguments.inverse, dim};
  constexpr unsigned wide = 16 / sizeof(T);
  const uint64_t all = address(arguments.rows) | address(arguments.out) | dim * sizeof(T);
  if (all % 16 == 0) {
    launch_pool<wide>(device, stream, rows, arguments.offsets, arguments.weights, arguments.out,
                      num_bags, dim, arguments.is_mean);
  } else {
    launch_pool<1>(device, stream, rows, arguments.offsets, arguments.weights, arguments.out,
                   num_bags, dim, arguments.is_mean);
  }
}

void pool_shown(Device& device, Stream stream, const ShownPool& arguments) {
  if (arguments.num_bags == 0) return;
  const auto dim = static_cast<uint64_t>(arguments.dim);
  with_row_type(arguments.type, [&]<class Element>(Element) {
    using Rows = ShownRows<Element>;
    using T = typename Rows::Computing;
    const Rows rows{arguments.rows, arguments.ids, arguments.initial};
    constexpr unsigned wide = 16 / sizeof(T);
    auto* const out = static_cast<T*>(arguments.out);
    const auto* const weights = static_cast<const T*>(arguments.weights);
    const auto num_bags = static_cast<uint64_t>(arguments.num_bags);
    if ((address(out) | dim * sizeof(T)) % 16 == 0) {
      launch_pool<wide>(device, stream, rows, arguments.offsets, weights, out, num_bags, dim,
                        arguments.is_mean);
    } else {
      launch_pool<1>(device, stream, rows, arguments.offsets, weights, out, num_bags, dim,
                     arguments.is_mean);
    }
  });
}

template <class T>
void pool_weight_gradient(Device& device, Stream stream, const PoolWeightGradient<T>& arguments) {
  if (arguments.count == 0) return;
  const auto num_threads = static_cast<uint64_t>(arguments.count) * DotTile<T>::num_lanes;
  launch(device, grid_for(device, num_threads), stream, WeightGradients<T>{arguments});
}

template void pool(Device&, Stream, const Pool<float>&);
template void pool(Device&, Stream, const Pool<double>&);
template void pool_weight_gradient(Device&, Stream, const PoolWeightGradient<float>&);
template void pool_weight_gradient(Device&, Stream, const PoolWeightGradient<double>&);

}  // namespace sparring::device_kernels
