#include "reader/lookup.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "reader/search.h"
#include "rows/quantize.h"
#include "rows/simd.h"
#include "sparring/storage_border.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sparring::packed {
namespace {

using border::parallel_for;
using border::StatusError;

// Number of ids whose rows are found before they are used.
constexpr int64_t kGroup = 256;
// For one layer: few if rows are read immediately, so that they are still in the cache.
constexpr int64_t kPooledGroup = 32;

// So few ids are searched one by one, because starting a search takes longer than it would save.
constexpr int64_t kSingleIds = 2;

// Larger results bypass the caches, in which they would not fit.
constexpr int64_t kStreamedBytes = 4 << 20;

void check_partition(const Version& version, int64_t id) {
  const int partition = partition_of(id);
  if (version.partitions.has(partition)) return;
  border::refuse("id " + std::to_string(id) + " is in partition " + std::to_string(partition) +
                 ", but only partitions " + std::to_string(version.partitions.begin) + " to " +
                 std::to_string(version.partitions.end - 1) +
                 " are open; request it from the shard that serves it, or open all partitions");
}

// Result of the search for a group of ids.
struct Group {
  const int64_t* ids;
  int64_t count;
  const void* rows[kGroup];  // out: stored rows, or NULL
  bool is_whole;             // out: whether none is NULL
};

// Searches the layers of a table, newest first.
void resolve(const Table& table, Group& group) {
  std::fill(group.rows, group.rows + group.count, nullptr);
  // Ids that no newer layer contains, and their positions in the group.
  int64_t pending[kGroup];
  uint16_t places[kGroup];
  int64_t num_pending = group.count;
  std::copy(group.ids, group.ids + group.count, pending);
  std::iota(places, places + group.count, uint16_t{0});
  const uint8_t* found[kGroup];
  for (const TableLayer* layer : table.layers) {
    for (const FileSet* files : {&layer->rows, &layer->erased}) {
      if (files->is_empty() || num_pending == 0) continue;
      const bool has_rows = files == &layer->rows;
      Search(*files, pending, num_pending, has_rows ? 8 + table.row_bytes : 8)
          .next(num_pending, found);
      int64_t left = 0;
      for (int64_t i = 0; i < num_pending; ++i) {
        const uint16_t place = places[i];
        if (found[i] == nullptr) {
          pending[left] = pending[i];
          places[left++] = place;
        } else if (has_rows) {
          group.rows[place] = PackedFile::row_of(found[i]);
        }
      }
      num_pending = left;
    }
  }
  group.is_whole = std::find(group.rows, group.rows + group.count, nullptr) == group.rows + group.count;
}

struct Range {
  int64_t begin;
  int64_t end;
  int64_t group;  // ids of a group, at most kGroup
};

// Calls body(first id, Group) for the groups of a range.
template <class Body>
void for_groups(const Version& version, const Table& table, const int64_t* ids, const Range& range,
                const Body& body) {
  const auto [begin, end, small_group] = range;
  if (version.partitions.begin != 0 || version.partitions.end != kNumPartitions) {
    for (int64_t i = begin; i < end; ++i) check_partition(version, ids[i]);
  }
  Group group;
  if (table.layers.size() == 1 && !table.layers[0]->rows.is_empty()) {
    // For a full snapshot, which erases nothing.
    const FileSet& files = table.layers[0]->rows;
    if (end - begin <= kSingleIds) {
      group.ids = ids + begin;
      group.count = end - begin;
      group.is_whole = true;
      for (int64_t i = 0; i < group.count; ++i) {
        const PackedFile* const file = files.file_of(group.ids[i]);
        const uint8_t* const record = file == nullptr ? nullptr : file->find(group.ids[i]);
        group.rows[i] = record == nullptr ? nullptr : PackedFile::row_of(record);
        group.is_whole &= record != nullptr;
      }
      if (group.count > 0) body(begin, group);
      return;
    }
    // One search for all ids.
    Search search(files, ids + begin, end - begin, 8 + table.row_bytes);
    const uint8_t* records[kGroup];
    for (int64_t at = begin; at < end; at += small_group) {
      group.ids = ids + at;
      group.count = std::min(small_group, end - at);
      search.next(group.count, records);
      group.is_whole = true;
      for (int64_t i = 0; i < group.count; ++i) {
        group.rows[i] = records[i] == nullptr ? nullptr : PackedFile::row_of(records[i]);
        group.is_whole &= records[i] != nullptr;
      }
      body(at, group);
    }
    return;
  }
  for (int64_t at = begin; at < end; at += kGroup) {
    group.ids = ids + at;
    group.count = std::min(kGroup, end - at);
    resolve(table, group);
    body(at, group);
  }
}

// Minimum number of ids per thread: about 20 µs of work.
int64_t grain_of(const Table& table) {
  return std::max<int64_t>(kGroup, (64 << 10) / (table.row_bytes + 64) / kGroup * kGroup);
}

uint64_t stride_of(const Table& table, int32_t dtype) {
  return static_cast<uint64_t>(dtype == SPARRING_PACKED_STORED ? table.row_bytes
                                                               : 4 * table.entry.dim);
}

// Writes the row of `id` in the requested format, from its stored row, or NULL if there is none.
void write_row(const Table& table, const LookupOptions& options, int64_t id, const void* stored,
               void* out) {
  const int64_t dim = table.entry.dim;
  const bool is_stored = options.dtype == SPARRING_PACKED_STORED;
  if (stored != nullptr && is_stored) {
    std::memcpy(out, stored, static_cast<size_t>(table.row_bytes));
    return;
  }
  if (stored == nullptr && options.missing == SPARRING_PACKED_ZEROS) {
    std::memset(out, 0, static_cast<size_t>(stride_of(table, options.dtype)));
    return;
  }
  // Only few rows take this path, some of which are not aligned as floats.
  std::vector<float> values(static_cast<size_t>(dim));
  if (stored != nullptr) {
    row_loops().widen[table.entry.dtype]({&stored, 1, dim, values.data(), dim, false});
  } else {
    initial_embedding(table.initial, id, dim, values.data());
  }
  if (!is_stored) {
    std::memcpy(out, values.data(), static_cast<size_t>(4 * dim));
  } else if (!encode_row(table.entry.dtype, values.data(), dim, static_cast<uint8_t*>(out))) {
    throw StatusError(SPARRING_UNSUPPORTED,
                      "the initial value of id " + std::to_string(id) + " of table " +
                          table.entry.name + " exceeds the range of " +
                          std::string(kDtypeNames[table.entry.dtype]) + "; request float32 rows");
  }
}

struct Output {
  char* rows;
  uint64_t stride;
  bool is_streamed;
};

void write_group(const Table& table, const LookupOptions& options, const Group& group,
                 const Output& output, int64_t at) {
  const int64_t dim = table.entry.dim;
  char* const first = output.rows + static_cast<uint64_t>(at) * output.stride;
  // All at once in the usual case that none is missing.
  if (group.is_whole && options.dtype == SPARRING_PACKED_FLOAT32 && output.stride % sizeof(float) == 0) {
    row_loops().widen[table.entry.dtype]({group.rows, group.count, dim,
                                          reinterpret_cast<float*>(first),
                                          static_cast<int64_t>(output.stride / sizeof(float)),
                                          output.is_streamed});
    return;
  }
  for (int64_t i = 0; i < group.count; ++i) {
    write_row(table, options, group.ids[i], group.rows[i],
              first + static_cast<uint64_t>(i) * output.stride);
  }
}

// ---- sums --------------------------------------------------------------------

// Adds the rows of ids [at, at + group.count) to their bags.
class BagSums {
 public:
  BagSums(const Table& table, const LookupOptions& options, const SparringPackedRequest& request,
          uint64_t stride)
      : table_(table), options_(options), request_(request), stride_(stride) {
    initial_.resize(static_cast<size_t>(table.entry.dim));
  }

  // Writes only the bags [begin, end).
  void start(int64_t begin, int64_t end) {
    bag_ = begin;
    end_ = end;
    clear_bag();
  }

  void add(int64_t at, const Group& group) {
    int64_t place = 0;
    while (place < group.count) {
      if (group.is_whole && add_bags(at, place, group)) continue;
      while (at + place >= request_.offsets[bag_ + 1]) close_bag();
      const int64_t end = std::min(group.count, request_.offsets[bag_ + 1] - at);
      add_run(at, place, end, group);
      place = end;
    }
  }

  void finish() {
    while (bag_ < end_) close_bag();
  }

 private:
  float* out() const {
    return reinterpret_cast<float*>(static_cast<char*>(request_.rows) +
                                    static_cast<uint64_t>(bag_) * stride_);
  }

  void clear_bag() {
    if (bag_ < end_) std::fill(out(), out() + table_.entry.dim, 0.0f);
  }

  void close_bag() {
    divide_bag();
    clear_bag();
  }

  // Completes a bag that has all its rows, and continues with the next.
  void divide_bag() {
    const int64_t count = request_.offsets[bag_ + 1] - request_.offsets[bag_];
    if (request_.is_mean != 0 && count > 0) {
      for (int64_t column = 0; column < table_.entry.dim; ++column) {
        out()[column] /= static_cast<float>(count);
      }
    }
    ++bag_;
  }

  // Adds bags that are in the group from begin to end, starting at `place`; returns whether
  // there are any. All at once in the usual case that none is missing.
  bool add_bags(int64_t at, int64_t& place, const Group& group) {
    if (request_.weights != nullptr || stride_ % sizeof(float) != 0) return false;
    const int64_t* const offsets = request_.offsets + bag_;
    if (offsets[0] != at + place) return false;
    const int64_t most = end_ - bag_;
    int64_t count = 0;
    while (count < most && offsets[count + 1] <= at + group.count) ++count;
    if (count == 0) return false;
    row_loops().pool[table_.entry.dtype]({group.rows + place, offsets, count, table_.entry.dim, out(),
                                          static_cast<int64_t>(stride_ / sizeof(float))});
    place = offsets[count] - at;
    for (int64_t i = 0; i < count; ++i) divide_bag();
    clear_bag();
    return true;
  }

  // Ids [place, end) of the group, all in one bag: runs of ids with rows, and single
  // ids without.
  void add_run(int64_t at, int64_t place, int64_t end, const Group& group) {
    const RowLoops& loops = row_loops();
    while (place < end) {
      const void* const* const first = group.rows + place;
      const void* const* const last = std::find(first, group.rows + end, nullptr);
      const float* weights = request_.weights == nullptr ? nullptr : request_.weights + at + place;
      const int64_t count = last - first;
      if (count > 0) {
        loops.sum[table_.entry.dtype]({first, weights, count, table_.entry.dim, out()});
        place += count;
        continue;
      }
      if (options_.missing == SPARRING_PACKED_INITIAL) {
        initial_embedding(table_.initial, group.ids[place], table_.entry.dim, initial_.data());
        const void* const row = initial_.data();
        loops.sum[SPARRING_PACKED_FLOAT32]({&row, weights, 1, table_.entry.dim, out()});
      }
      ++place;
    }
  }

  const Table& table_;
  const LookupOptions& options_;
  const SparringPackedRequest& request_;
  const uint64_t stride_;
  int64_t bag_ = 0;
  int64_t end_ = 0;
  std::vector<float> initial_;
};

// Calls body(view, bucket, hash) for the ids of a request in the newest layer of its table.
template <class Body>
void for_newest(const Version& version, const SparringPackedRequest& request, const Body& body) {
  const Table& table = version.tables[static_cast<size_t>(request.table)];
  if (table.layers.empty() || table.layers[0]->rows.is_empty()) return;
  for (int64_t i = 0; i < request.count; ++i) {
    const PackedFile* const file = table.layers[0]->rows.file_of(request.ids[i]);
    if (file == nullptr) continue;
    const FileView& view = file->view();
    const uint64_t hash = view.hash_of(request.ids[i]);
    body(view, view.buckets[bucket_of(hash, view.num_buckets)], hash);
  }
}

void note_found(const SparringPackedRequest& request, int64_t at, const Group& group) {
  if (request.found == nullptr) return;
  for (int64_t i = 0; i < group.count; ++i) request.found[at + i] = group.rows[i] != nullptr;
}

}  // namespace

void prefetch_buckets(const Version& version, const SparringPackedRequest& request) {
  for_newest(version, request, [](const FileView&, const Bucket& bucket, uint64_t) {
    __builtin_prefetch(&bucket);
  });
}

void prefetch_records(const Version& version, const SparringPackedRequest& request) {
  const int64_t bytes = 8 + version.tables[static_cast<size_t>(request.table)].row_bytes;
  for_newest(version, request,
             [&](const FileView& view, const Bucket& bucket, uint64_t hash) {
               const uint32_t matches = FileView::matches(bucket, hash);
               if (!view.has(bucket) || matches == 0) return;
               const uint8_t* const record =
                   view.record(bucket.start + static_cast<uint64_t>(__builtin_ctz(matches)));
               for (int64_t at = 0; at < std::min(bytes, kMostPrefetchedBytes); at += 64) {
                 __builtin_prefetch(record + at);
               }
             });
}

size_t layer_of(const Table& table, int64_t id) {
  for (size_t i = 0; i < table.layers.size(); ++i) {
    for (const FileSet* files : {&table.layers[i]->rows, &table.layers[i]->erased}) {
      const PackedFile* const file = files->is_empty() ? nullptr : files->file_of(id);
      if (file != nullptr && file->find(id) != nullptr) return i;
    }
  }
  return table.layers.size();
}

void look_up(const Version& version, const LookupOptions& options,
             const SparringPackedRequest& request) {
  const Table& table = version.tables[static_cast<size_t>(request.table)];
  Output output{static_cast<char*>(request.rows), request.row_stride, false};
  if (output.stride == 0) output.stride = stride_of(table, options.dtype);
  output.is_streamed = reinterpret_cast<uintptr_t>(request.rows) % 64 == 0 &&
                       output.stride % 64 == 0 &&
                       request.count * static_cast<int64_t>(output.stride) >= kStreamedBytes;
  parallel_for(options.executor, request.count, grain_of(table), [&](int64_t begin, int64_t end) {
    for_groups(version, table, request.ids, {begin, end, kGroup}, [&](int64_t at, const Group& group) {
      write_group(table, options, group, output, at);
      note_found(request, at, group);
    });
#if defined(__SSE2__)
    // Orders streamed stores before later ones.
    if (output.is_streamed) _mm_sfence();
#endif
  });
}

void pool(const Version& version, const LookupOptions& options,
          const SparringPackedRequest& request) {
  const Table& table = version.tables[static_cast<size_t>(request.table)];
  const uint64_t stride = request.row_stride != 0 ? request.row_stride
                                                  : stride_of(table, SPARRING_PACKED_FLOAT32);
  const int64_t ids_per_bag = request.count / std::max<int64_t>(request.num_bags, 1) + 1;
  const int64_t grain = std::max<int64_t>(1, grain_of(table) / ids_per_bag);
  parallel_for(options.executor, request.num_bags, grain, [&](int64_t begin, int64_t end) {
    BagSums sums(table, options, request, stride);
    sums.start(begin, end);
    for_groups(version, table, request.ids,
               {request.offsets[begin], request.offsets[end], kPooledGroup},
               [&](int64_t at, const Group& group) {
                 sums.add(at, group);
                 note_found(request, at, group);
               });
    sums.finish();
  });
}

}  // namespace sparring::packed
