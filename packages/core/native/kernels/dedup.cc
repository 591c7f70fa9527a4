#include "kernels/dedup.h"

#include <memory>

#include "kernels/key_index.h"
#include "kernels/parallel.h"
#include "kernels/radix.h"
#include "kernels/scratch.h"

namespace sparring::kernels {
namespace {

// Distance, in ids, of the prefetch of slots.
constexpr int64_t kAheadInDedup = 12;

// A split takes about two and a half times the work of a single index. It is faster if
// enough threads share the work, or if a single index would not fit into the caches.
constexpr int64_t kLeastSplitIds = 524288;
constexpr int64_t kLeastSplitIdsOfMany = 32768;
constexpr int kManyThreads = 4;

int64_t least_split_ids(const SparringExecutor* executor) {
  const bool has_many = executor != nullptr && executor->concurrency >= kManyThreads;
  return has_many ? kLeastSplitIdsOfMany : kLeastSplitIds;
}

// Ids per part of a split. The index of a part, 32 bytes per id, fits into the L2 cache.
constexpr int64_t kPartIds = 8192;

// Calls visit(i, number) for the ids in order, with the number of each id in `index`. A new
// id gets the number next(i).
template <class Next, class Visit>
void number_ids(KeyIndex& index, const int64_t* ids, int64_t count, const Next& next,
                const Visit& visit) {
  index.reset(count);
  const int64_t with_ahead = count > kAheadInDedup ? count - kAheadInDedup : 0;
  for (int64_t i = 0; i < with_ahead; ++i) {
    index.prefetch(index.hash(ids[i + kAheadInDedup]));
    visit(i, index.find_or_insert(index.hash(ids[i]), ids[i], next(i)));
  }
  for (int64_t i = with_ahead; i < count; ++i) {
    visit(i, index.find_or_insert(index.hash(ids[i]), ids[i], next(i)));
  }
}

int64_t dedup_whole(const int64_t* ids, int64_t count, int64_t* keys, int64_t* inverse) {
  Scratch<KeyIndex> index;
  uint32_t num_keys = 0;
  number_ids(
      *index, ids, count, [&](int64_t) { return num_keys; },
      [&](int64_t i, uint32_t number) {
        inverse[i] = number;
        // Written for every id, because a branch would be mispredicted.
        keys[num_keys] = ids[i];
        num_keys += number == num_keys;
      });
  return num_keys;
}

// The arrays of a split, 16 bytes per id.
struct Split {
  std::unique_ptr<int64_t[]> ids;       // (n) by part
  std::unique_ptr<uint32_t[]> places;   // (n) positions of these ids in the batch
  std::unique_ptr<uint32_t[]> firsts;   // (n) in batch order: first position of the id
  int64_t capacity = 0;

  void reserve(int64_t count) {
    if (count <= capacity) return;
    *this = {};
    const auto size = static_cast<size_t>(count);
    ids = std::make_unique_for_overwrite<int64_t[]>(size);
    places = std::make_unique_for_overwrite<uint32_t[]>(size);
    firsts = std::make_unique_for_overwrite<uint32_t[]>(size);
    capacity = count;
  }
  int64_t memory_bytes() const { return 16 * capacity; }
};

// Equal ids have equal hashes, so the parts of a split by hash are independent. Each
// part finds the first position of each of its ids. Counting the first positions over
// the batch then numbers the keys.
int64_t dedup_split(const SparringExecutor* executor, const int64_t* ids, int64_t count,
                       int64_t* keys, int64_t* inverse) {
  const KeyIndex hasher;
  const int64_t num_parts = num_parts_for(count, kPartIds);
  // The low bits choose the slot within a part's index.
  const auto part_of = [&](int64_t id) {
    return static_cast<int64_t>((hasher.hash(id) >> 48) & static_cast<uint64_t>(num_parts - 1));
  };
  const Chunks chunks = Chunks::of(executor, count);

  Scratch<Split> split;
  split->reserve(count);
  int64_t* const split_ids = split->ids.get();
  uint32_t* const places = split->places.get();
  uint32_t* const firsts = split->firsts.get();

  const std::vector<int64_t> begins = radix_split(
      executor, chunks, num_parts,
      [&](int64_t begin, int64_t end, int64_t* counts) {
        for (int64_t i = begin; i < end; ++i) ++counts[part_of(ids[i])];
      },
      [&](int64_t begin, int64_t end, int64_t* next) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t to = next[part_of(ids[i])]++;
          split_ids[to] = ids[i];
          places[to] = static_cast<uint32_t>(i);
        }
      });

  parallel_for(executor, num_parts, 1, [&](int64_t first, int64_t last) {
    Scratch<KeyIndex> index;
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = begins[static_cast<size_t>(part)];
      const uint32_t* place = places + begin;
      number_ids(
          *index, split_ids + begin, begins[static_cast<size_t>(part) + 1] - begin,
          [&](int64_t i) { return place[i]; },
          [&](int64_t i, uint32_t number) { firsts[place[i]] = number; });
    }
  });

  std::vector<int64_t> num_before(static_cast<size_t>(chunks.num_chunks) + 1);
  const auto each_chunk = [&](const auto& body) {
    parallel_for(executor, chunks.num_chunks, 1, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        body(static_cast<size_t>(chunk), static_cast<size_t>(chunks.begin(chunk)),
             static_cast<size_t>(chunks.end(chunk)));
      }
    });
  };
  each_chunk([&](size_t chunk, size_t begin, size_t end) {
    int64_t num_first = 0;
    for (size_t i = begin; i < end; ++i) num_first += firsts[i] == i;
    num_before[chunk + 1] = num_first;
  });
  for (size_t chunk = 1; chunk < num_before.size(); ++chunk) {
    num_before[chunk] += num_before[chunk - 1];
  }
  each_chunk([&](size_t chunk, size_t begin, size_t end) {
    int64_t number = num_before[chunk];
    for (size_t i = begin; i < end; ++i) {
      if (firsts[i] != i) continue;
      keys[number] = ids[i];
      inverse[i] = number++;
    }
  });
  each_chunk([&](size_t, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (firsts[i] != i) inverse[i] = inverse[firsts[i]];
    }
  });
  return num_before.back();
}

}  // namespace

int64_t dedup(const SparringExecutor* executor, const int64_t* ids, int64_t count, int64_t* keys,
              int64_t* inverse) {
  if (count < least_split_ids(executor)) return dedup_whole(ids, count, keys, inverse);
  return dedup_split(executor, ids, count, keys, inverse);
}

}  // namespace sparring::kernels
