#include "device_kernels/sums.h"

#include <algorithm>

#include "device/algorithms.h"
#include "device/atomics.h"
#include "device/move_rows.h"
#include "device_kernels/elements.h"
#include "device_kernels/scalars.h"
#include "device_kernels/segments.h"
#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

// Prepares the input of the sort, and the bag of each occurrence.
struct Prepares {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* targets;
  uint32_t* narrow_targets;
  uint32_t* places;
  uint64_t count;
  const int64_t* offsets;  // (num_bags + 1), or NULL: bag i is occurrence i
  uint32_t* bags;          // out (n) if there are offsets
  uint64_t num_bags;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      narrow_targets[i] = static_cast<uint32_t>(targets[i]);
      places[i] = static_cast<uint32_t>(i);
    }
    if (offsets == nullptr) return;
    constexpr unsigned lanes = 4;  // per bag; most have few ids
    for (uint64_t at = block.thread_in_grid(); at / lanes < num_bags; at += block.grid_threads()) {
      const uint64_t bag = at / lanes;
      const int64_t end = offsets[bag + 1];
      for (auto i = offsets[bag] + static_cast<int64_t>(at % lanes); i < end; i += lanes)
        bags[i] = static_cast<uint32_t>(bag);
    }
  }
};

// Checks sums while they are in registers.
template <class T>
struct Checked : Scatter<T> {
  template <unsigned kCount>
  SPARRING_DEVICE void look_at(const Elements<T, kCount>& sum) const {
    if (this->num_bad == nullptr) return;
    bool has_bad = false;
    for (unsigned k = 0; k < kCount; ++k) has_bad |= is_bad(sum.values[k]);
    if (has_bad) device::atomic_add(this->num_bad, uint64_t{1});
  }
};

// Sums ranges of the sorted order, one per tile.
template <class T, unsigned kCount, unsigned kLanes>
struct Sums {
  static constexpr unsigned kInFlight = kLanes < 8 ? kLanes : 8;
  using Piece = Elements<T, kCount>;
  Checked<T> a;
  const uint32_t* bags;            // (n), or NULL: occurrence i is bag i
  const uint32_t* places;          // (n) occurrences sorted by target
  const uint32_t* sorted_targets;  // (n)
  const uint32_t* starts;          // (num_rows + 1)

  SPARRING_DEVICE bool is_long(uint64_t target) const {
    return starts[target + 1] - starts[target] > kLongSegment;
  }

  // out (dim) = the sum of the occurrences [begin, end) of the sorted order, in order;
  // `kIsWhole`: they are all occurrences of a target. `out` NULL: nothing to do. All tiles of the
  // warp must call this together.
  template <bool kIsWhole>
  SPARRING_DEVICE void add_up(const Tile<kLanes>& tile, uint64_t begin, uint64_t end,
                              T* out) const {
    if (out == nullptr) end = begin;
    const auto dim = static_cast<uint64_t>(a.dim);
    for (uint64_t columns = 0; columns < dim; columns += kLanes * kCount) {
      const uint64_t column = columns + tile.lane() * kCount;
      const bool is_there = column < dim;
      Piece sum{};
      for (uint64_t at = begin; tile.any_of_warp(at < end); at += kLanes) {
        const Source own = at + tile.lane() < end ? source(places[at + tile.lane()]) : Source{};
        for (unsigned first = 0; first < kLanes; first += kInFlight) {
          if (!tile.any_of_warp(at + first < end)) break;
          add_some(tile, own, first, at < end ? end - at : 0, is_there ? column : dim, sum);
        }
      }
      if (out == nullptr || !is_there) continue;
      sum.store(out + column);
      if constexpr (kIsWhole) a.look_at(sum);
    }
  }

 private:
  // The source of an occurrence, and its factor.
  struct Source {
    uint32_t bag = 0;
    T scale = 1;
  };
  SPARRING_DEVICE bool has_scales() const { return a.weights != nullptr || a.is_mean; }
  SPARRING_DEVICE Source source(uint32_t i) const {
    Source found;
    found.bag = bags != nullptr ? bags[i] : i;
    if (!has_scales()) return found;
    const T share = a.is_mean ? T{1} / static_cast<T>(num_ids(found.bag)) : T{1};
    found.scale = a.weights != nullptr ? a.weights[i] * share : share;
    return found;
  }
  SPARRING_DEVICE int64_t num_ids(uint64_t bag) const {
    return a.offsets != nullptr ? a.offsets[bag + 1] - a.offsets[bag] : 1;
  }

  // Adds the occurrences [first, first + kInFlight) of the tile's `num_left`, with all loads in
  // flight
  // before the first is added.
  SPARRING_DEVICE void add_some(const Tile<kLanes>& tile, const Source& own, unsigned first,
                                uint64_t num_left, uint64_t column, Piece& sum) const {
    const auto dim = static_cast<uint64_t>(a.dim);
    Piece pieces[kInFlight] = {};
    T scales[kInFlight];
    SPARRING_UNROLL
    for (unsigned k = 0; k < kInFlight; ++k) {
      const uint64_t bag = tile.shuffle(own.bag, first + k);
      scales[k] = tile.shuffle(own.scale, first + k);
      if (first + k < num_left && column < dim) pieces[k] = Piece::load(a.source + bag * dim + column);
    }
    SPARRING_UNROLL
    for (unsigned k = 0; k < kInFlight; ++k) {
      if (first + k >= num_left || column >= dim) continue;
      for (unsigned element = 0; element < kCount; ++element) {
        const T value = pieces[k].values[element];
        sum.values[element] = sum.values[element] + (has_scales() ? value * scales[k] : value);
      }
    }
  }
};

// One target per tile.
template <class T, unsigned kCount, unsigned kLanes>
struct SumsShort {
  static constexpr unsigned block_threads = kBlockThreads;
  Sums<T, kCount, kLanes> sums;

  SPARRING_DEVICE void operator()(const Block& block) const {
    const Tile<kLanes> tile(block);
    const auto num_rows = static_cast<uint64_t>(sums.a.num_rows);
    const uint64_t rounds = rounds_for(num_rows, Tile<kLanes>::count(block));
    uint64_t t = Tile<kLanes>::in_grid(block);
    for (uint64_t round = 0; round < rounds; ++round, t += Tile<kLanes>::count(block)) {
      const bool is_mine = t < num_rows && !sums.is_long(t);
      sums.template add_up<true>(tile, is_mine ? sums.starts[t] : 0, is_mine ? sums.starts[t + 1] : 0,
                  is_mine ? sums.a.out + t * static_cast<uint64_t>(sums.a.dim) : nullptr);
    }
  }
};

// The sorted order in pieces of kPiece. A long segment spans several pieces, and a piece contains
// parts of at most two long segments: the segments of its first and last occurrence.
struct Pieces {
  uint64_t count;  // n
  SPARRING_HOST_DEVICE uint64_t num_pieces() const { return (count + kPiece - 1) / kPiece; }
  SPARRING_DEVICE static uint64_t begin(uint64_t piece) { return piece * kPiece; }
  SPARRING_DEVICE uint64_t end(uint64_t piece) const {
    return begin(piece) + kPiece < count ? begin(piece) + kPiece : count;
  }
  // Index of the sum of the part of [segment_begin, ...) in a piece.
  SPARRING_DEVICE static uint64_t place(uint64_t piece, uint64_t segment_begin) {
    return 2 * piece + (segment_begin > begin(piece) ? 1 : 0);
  }
};

// One part of a long segment per tile.
template <class T, unsigned kCount, unsigned kLanes>
struct SumsParts {
  static constexpr unsigned block_threads = kBlockThreads;
  Sums<T, kCount, kLanes> sums;
  Pieces pieces;
  T* parts;  // out (2 num_pieces, dim), device

  SPARRING_DEVICE void operator()(const Block& block) const {
    const Tile<kLanes> tile(block);
    const uint64_t num_parts = 2 * pieces.num_pieces();
    const uint64_t rounds = rounds_for(num_parts, Tile<kLanes>::count(block));
    uint64_t at = Tile<kLanes>::in_grid(block);
    for (uint64_t round = 0; round < rounds; ++round, at += Tile<kLanes>::count(block)) {
      uint64_t begin = 0;
      uint64_t end = 0;
      T* out = nullptr;
      if (at < num_parts) {
        const uint64_t piece = at / 2;
        begin = Pieces::begin(piece);
        end = pieces.end(piece);
        const uint32_t target = sums.sorted_targets[at % 2 == 0 ? begin : end - 1];
        const uint64_t segment_begin = sums.starts[target];
        const uint64_t segment_end = sums.starts[target + 1];
        if (sums.is_long(target) && Pieces::place(piece, segment_begin) == at) {
          begin = begin < segment_begin ? segment_begin : begin;
          end = end < segment_end ? end : segment_end;
          out = parts + at * static_cast<uint64_t>(sums.a.dim);
        }
      }
      sums.template add_up<false>(tile, begin, end, out);
    }
  }
};

// A block sums the parts of one long segment, identified by the piece in which it starts: each warp
// sums a range of parts, then the sums of the warps are added in order.
template <class T, unsigned kCount>
struct SumsLong {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr uint64_t num_warps = block_threads / device::warp_lanes;
  static constexpr unsigned kInFlight = 8;
  using Piece = Elements<T, kCount>;
  Checked<T> a;
  const uint32_t* sorted_targets;  // (n)
  const uint32_t* starts;          // (num_rows + 1)
  Pieces pieces;
  const T* parts;  // (2 num_pieces, dim), device

  SPARRING_DEVICE void operator()(const Block& block) const {
    const uint64_t num_pieces = pieces.num_pieces();
    for (uint64_t piece = block.index(); piece < num_pieces; piece += block.num_blocks()) {
      const uint32_t target = sorted_targets[pieces.end(piece) - 1];
      const uint64_t begin = starts[target];
      const uint64_t end = starts[target + 1];
      // The same for all threads.
      if (end - begin <= kLongSegment || begin < Pieces::begin(piece)) continue;
      add_up(block, target, begin, piece, (end - 1) / kPiece + 1);
    }
  }

 private:
  SPARRING_DEVICE void add_up(const Block& block, uint32_t target, uint64_t begin, uint64_t first,
                              uint64_t last) const {
    const auto dim = static_cast<uint64_t>(a.dim);
    auto* const shared = block.shared<Piece>();  // (warps, 32)
    const unsigned lane = block.warp().lane();
    const uint64_t own_first = first + (last - first) * block.warp_index() / num_warps;
    const uint64_t own_last = first + (last - first) * (block.warp_index() + 1) / num_warps;
    for (uint64_t columns = 0; columns < dim; columns += device::warp_lanes * kCount) {
      const uint64_t column = columns + lane * kCount;
      Piece sum{};
      for (uint64_t at = own_first; at < own_last && column < dim; at += kInFlight) {
        Piece read[kInFlight] = {};
        SPARRING_UNROLL
        for (unsigned k = 0; k < kInFlight; ++k) {
          if (at + k < own_last) {
            read[k] = Piece::load(parts + Pieces::place(at + k, begin) * dim + column);
          }
        }
        SPARRING_UNROLL
        for (unsigned k = 0; k < kInFlight; ++k) {
          if (at + k < own_last) add(sum, read[k]);
        }
      }
      shared[block.thread()] = sum;
      block.sync();
      if (block.warp_index() == 0 && column < dim) {
        for (uint64_t warp = 1; warp < num_warps; ++warp)
          add(sum, shared[warp * device::warp_lanes + lane]);
        sum.store(a.out + target * dim + column);
        a.look_at(sum);
      }
      block.sync();
    }
  }
  SPARRING_DEVICE static void add(Piece& sum, const Piece& more) {
    for (unsigned k = 0; k < kCount; ++k) sum.values[k] = sum.values[k] + more.values[k];
  }
};

// The sorted occurrences, which the kernels share.
struct Sorted {
  const uint32_t* bags;
  const uint32_t* places;
  const uint32_t* targets;
  const uint32_t* starts;
};

// Rows that can be read kCount elements at a time.
template <unsigned kCount, class T>
void add_up(Device& device, Stream stream, const Scatter<T>& a, const Sorted& sorted) {
  const auto num_rows = static_cast<uint64_t>(a.num_rows);
  with_tile(a.dim / kCount, [&]<unsigned kLanes>() {
    const Sums<T, kCount, kLanes> sums{{a}, sorted.bags, sorted.places, sorted.targets,
                                       sorted.starts};
    launch(device, grid_for(device, num_rows * kLanes), stream,
           SumsShort<T, kCount, kLanes>{sums});
    if (a.count <= kLongSegment) return;
    const Pieces pieces{static_cast<uint64_t>(a.count)};
    const Buffer parts =
        make_buffer<T>(device, 2 * pieces.num_pieces() * static_cast<uint64_t>(a.dim), stream);
    launch(device, grid_for(device, 2 * pieces.num_pieces() * kLanes), stream,
           SumsParts<T, kCount, kLanes>{sums, pieces, parts.as<T>()});
    device::Shape shape = grid_for(device, pieces.num_pieces() * kBlockThreads);
    shape.shared_bytes = kBlockThreads * sizeof(Elements<T, kCount>);
    launch(device, shape, stream,
           SumsLong<T, kCount>{{a}, sorted.targets, sorted.starts, pieces, parts.as<T>()});
  });
}

}  // namespace

template <class T>
void scatter(Device& device, Stream stream, const Scatter<T>& arguments) {
  const auto count = static_cast<uint64_t>(arguments.count);
  const auto num_rows = static_cast<uint64_t>(arguments.num_rows);
  const auto num_bags = static_cast<uint64_t>(arguments.num_bags);
  if (num_rows == 0 || arguments.dim == 0) return;
  if (count == 0) {
    device.fill(arguments.out, 0, num_rows * static_cast<uint64_t>(arguments.dim) * sizeof(T),
                stream);
    return;
  }
  const Buffer targets = make_buffer<uint32_t>(device, count, stream);
  const Buffer places = make_buffer<uint32_t>(device, count, stream);
  const Buffer sorted_targets = make_buffer<uint32_t>(device, count, stream);
  const Buffer sorted_places = make_buffer<uint32_t>(device, count, stream);
  const Buffer starts = make_buffer<uint32_t>(device, num_rows + 1, stream);
  Buffer bags;
  if (arguments.offsets != nullptr) bags = make_buffer<uint32_t>(device, count, stream);
  launch(device, grid_for(device, std::max(count, 4 * num_bags)), stream,
         Prepares{arguments.targets, targets.as<uint32_t>(), places.as<uint32_t>(), count,
                  arguments.offsets, bags.as<uint32_t>(), num_bags});
  device::sort_pairs(device, stream, targets.as<uint32_t>(), places.as<uint32_t>(),
                     sorted_targets.as<uint32_t>(), sorted_places.as<uint32_t>(), count,
                     {0, num_bits_below(num_rows)});
  find_starts(device, stream,
              Starts{sorted_targets.as<uint32_t>(), count, num_rows, starts.as<uint32_t>()});
  const Sorted sorted{bags.as<uint32_t>(), sorted_places.as<uint32_t>(),
                      sorted_targets.as<uint32_t>(), starts.as<uint32_t>()};
  const uint64_t row_bytes = static_cast<uint64_t>(arguments.dim) * sizeof(T);
  if ((device::address(arguments.source) | device::address(arguments.out) | row_bytes) % 16 == 0) {
    add_up<16 / sizeof(T)>(device, stream, arguments, sorted);
  } else {
    add_up<1>(device, stream, arguments, sorted);
  }
}

template void scatter(Device&, Stream, const Scatter<float>&);
template void scatter(Device&, Stream, const Scatter<double>&);

}  // namespace sparring::device_kernels
