#include "device_kernels/sums.h"

#include "device/algorithms.h"
#include "device_kernels/segments.h"
#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

struct Prepares {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* targets;
  uint32_t* narrow_targets;
  uint32_t* places;
  uint64_t count;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      narrow_targets[i] = static_cast<uint32_t>(targets[i]);
      places[i] = static_cast<uint32_t>(i);
    }
  }
};

// Which bag each occurrence is in.
struct WritesBags {
  static constexpr unsigned block_threads = kBlockThreads;
  const int64_t* offsets;
  uint32_t* bags;  // out (n)
  uint64_t num_bags;

  SPARRING_DEVICE void operator()(const Block& block) const {
    const unsigned lane = block.warp().lane();
    for (uint64_t bag = block.warp_in_grid(); bag < num_bags; bag += block.grid_warps()) {
      for (int64_t i = offsets[bag] + lane; i < offsets[bag + 1]; i += device::warp_lanes)
        bags[i] = static_cast<uint32_t>(bag);
    }
  }
};

struct FlagsLong {
  static constexpr unsigned block_threads = kBlockThreads;
  const uint32_t* starts;
  uint32_t* numbers;
  uint8_t* is_long;
  uint64_t num_rows;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t t = block.thread_in_grid(); t < num_rows; t += block.grid_threads()) {
      numbers[t] = static_cast<uint32_t>(t);
      is_long[t] = starts[t + 1] - starts[t] > kLongSegment ? 1 : 0;
    }
  }
};

template <class T>
struct Sums {
  Scatter<T> a;
  const uint32_t* bags;    // (n), or NULL: occurrence i is bag i
  const uint32_t* places;  // (n) occurrences by target
  const uint32_t* starts;  // (num_rows + 1)

  // Column `column` of the occurrences [begin, end) of the sorted order.
  SPARRING_DEVICE T of(uint64_t begin, uint64_t end, uint64_t column) const {
    const auto dim = static_cast<uint64_t>(a.dim);
    T sum = 0;
    for (uint64_t at = begin; at < end; ++at) {
      const uint32_t i = places[at];
      const uint64_t bag = bags != nullptr ? bags[i] : i;
      const T value = a.source[bag * dim + column];
      if (a.weights != nullptr || a.is_mean) {
        const T share = a.is_mean ? T{1} / static_cast<T>(num_ids(bag)) : T{1};
        sum = sum + value * (a.weights != nullptr ? a.weights[i] * share : share);
      } else {
        sum = sum + value;
      }
    }
    return sum;
  }
  SPARRING_DEVICE int64_t num_ids(uint64_t bag) const {
    return a.offsets != nullptr ? a.offsets[bag + 1] - a.offsets[bag] : 1;
  }
};

template <class T, unsigned kLanes>
struct SumsShort {
  static constexpr unsigned block_threads = kBlockThreads;
  Sums<T> sums;

  SPARRING_DEVICE void operator()(const Block& block) const {
    const auto num_rows = static_cast<uint64_t>(sums.a.num_rows);
    const auto dim = static_cast<uint64_t>(sums.a.dim);
    const unsigned lane = Tile<kLanes>(block).lane();
    for (uint64_t t = Tile<kLanes>::in_grid(block); t < num_rows; t += Tile<kLanes>::count(block)) {
      const uint32_t begin = sums.starts[t];
      const uint32_t end = sums.starts[t + 1];
      if (end - begin > kLongSegment) continue;
      for (uint64_t column = lane; column < dim; column += kLanes)
        sums.a.out[t * dim + column] = sums.of(begin, end, column);
    }
  }
};

// A block does one long target, 32 columns at a time; each warp a stretch of it.
template <class T>
struct SumsLong {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr uint64_t num_warps = block_threads / device::warp_lanes;
  Sums<T> sums;
  const uint32_t* long_targets;
  const uint32_t* num_long;

  SPARRING_DEVICE void operator()(const Block& block) const {
    const auto dim = static_cast<uint64_t>(sums.a.dim);
    T* const parts = block.shared<T>();  // (warps, 32)
    const unsigned lane = block.warp().lane();
    const uint32_t num = *num_long;
    for (uint32_t at = block.index(); at < num; at += block.num_blocks()) {
      const uint32_t t = long_targets[at];
      const uint64_t begin = sums.starts[t];
      const uint64_t length = sums.starts[t + 1] - begin;
      const uint64_t first = begin + length * block.warp_index() / num_warps;
      const uint64_t last = begin + length * (block.warp_index() + 1) / num_warps;
      for (uint64_t column = 0; column < dim; column += device::warp_lanes) {
        const bool is_there = column + lane < dim;
        parts[block.thread()] = is_there ? sums.of(first, last, column + lane) : T{0};
        block.sync();
        if (block.warp_index() == 0 && is_there) {
          T sum = parts[lane];
          for (uint64_t warp = 1; warp < num_warps; ++warp)
            sum = sum + parts[warp * device::warp_lanes + lane];
          sums.a.out[t * dim + column + lane] = sum;
        }
        block.sync();
      }
    }
  }
};

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
  launch(device, grid_for(device, count), stream,
         Prepares{arguments.targets, targets.as<uint32_t>(), places.as<uint32_t>(), count});
  device::sort_pairs(device, stream, targets.as<uint32_t>(), places.as<uint32_t>(),
                     sorted_targets.as<uint32_t>(), sorted_places.as<uint32_t>(), count,
                     {0, num_bits_below(num_rows)});
  find_starts(device, stream,
              Starts{sorted_targets.as<uint32_t>(), count, num_rows, starts.as<uint32_t>()});
  Sums<T> sums{arguments, nullptr, sorted_places.as<uint32_t>(), starts.as<uint32_t>()};
  Buffer bags;
  if (arguments.offsets != nullptr) {
    bags = make_buffer<uint32_t>(device, count, stream);
    sums.bags = bags.as<uint32_t>();
    launch(device, grid_for(device, num_bags * device::warp_lanes), stream,
           WritesBags{arguments.offsets, bags.as<uint32_t>(), num_bags});
  }
  with_tile(arguments.dim, [&]<unsigned kLanes>() {
    launch(device, grid_for(device, num_rows * kLanes), stream, SumsShort<T, kLanes>{sums});
  });
  if (arguments.count <= kLongSegment) return;
  const Buffer numbers = make_buffer<uint32_t>(device, num_rows, stream);
  const Buffer is_long = make_buffer<uint8_t>(device, num_rows, stream);
  const Buffer long_targets = make_buffer<uint32_t>(device, num_rows + 1, stream);
  launch(device, grid_for(device, num_rows), stream,
         FlagsLong{starts.as<uint32_t>(), numbers.as<uint32_t>(), is_long.as<uint8_t>(), num_rows});
  uint32_t* const num_long = long_targets.as<uint32_t>() + num_rows;
  device::select_flagged(device, stream, numbers.as<uint32_t>(), is_long.as<uint8_t>(),
                         long_targets.as<uint32_t>(), num_long, num_rows);
  const uint64_t most_long = count / static_cast<uint64_t>(kLongSegment);
  device::Shape shape = grid_for(device, most_long * kBlockThreads);
  shape.shared_bytes = kBlockThreads * sizeof(T);
  launch(device, shape, stream, SumsLong<T>{sums, long_targets.as<uint32_t>(), num_long});
}

template void scatter(Device&, Stream, const Scatter<float>&);
template void scatter(Device&, Stream, const Scatter<double>&);

}  // namespace sparring::device_kernels
