// Splits a batch into parts for separate threads, in the order of the batch.
//
//   chunks   equal pieces of the batch; one thread counts and then copies each chunk
//   parts    destinations of the items; within a part they keep the order of the batch,
//            for any number of chunks
//
//   counts   (num_parts, num_chunks): first the number of items of a chunk in a part,
//            then, as prefix sums over the parts, the position of the first of them
#ifndef SPARRING_KERNELS_RADIX_H_
#define SPARRING_KERNELS_RADIX_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/parallel.h"

namespace sparring::kernels {

// Half-open ranges that cover [0, count) evenly.
struct Chunks {
  int64_t count;
  int64_t num_chunks;

  // A few per thread, but large enough that the counts are cheap.
  static Chunks of(const SparringExecutor* executor, int64_t count) {
    const int64_t wanted = is_serial(executor) ? 1 : int64_t{4} * executor->concurrency;
    return {count, std::clamp<int64_t>(count / 4096, 1, wanted)};
  }
  int64_t begin(int64_t chunk) const { return count * chunk / num_chunks; }
  int64_t end(int64_t chunk) const { return begin(chunk + 1); }
};

// Number of parts for `count` items with about `wanted` items each: a power of two, and at
// most what the write buffers of a core support.
inline int64_t num_parts_for(int64_t count, int64_t wanted) {
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(count / wanted, 1, 256))));
}

// Calls count(begin, end, counts) for every chunk to count its items per part, and then
// place(begin, end, next). next (num_parts) contains the position of the chunk's next item
// in each part; `place` increments it for each item.
// Returns the beginning of each part: (num_parts + 1), from 0 to the number of items.
template <class Count, class Place>
std::vector<int64_t> radix_split(const SparringExecutor* executor, const Chunks& chunks,
                                 int64_t num_parts, const Count& count, const Place& place) {
  std::vector<int64_t> counts(static_cast<size_t>(chunks.num_chunks * num_parts));
  const auto of_chunk = [&](int64_t chunk) { return counts.data() + chunk * num_parts; };
  parallel_for(executor, chunks.num_chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      count(chunks.begin(chunk), chunks.end(chunk), of_chunk(chunk));
    }
  });
  std::vector<int64_t> begins(static_cast<size_t>(num_parts + 1));
  int64_t total = 0;
  for (int64_t part = 0; part < num_parts; ++part) {
    begins[static_cast<size_t>(part)] = total;
    for (int64_t chunk = 0; chunk < chunks.num_chunks; ++chunk) {
      int64_t& here = of_chunk(chunk)[part];
      total += here;
      here = total - here;
    }
  }
  begins[static_cast<size_t>(num_parts)] = total;
  parallel_for(executor, chunks.num_chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      place(chunks.begin(chunk), chunks.end(chunk), of_chunk(chunk));
    }
  });
  return begins;
}

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_RADIX_H_
