#include "writer/pack.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "format/layout.h"
#include "rows/level.h"
#include "rows/quantize.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::refuse;

constexpr uint64_t kKeysPerBucket = 16;  // on average; more than 29 are rare
constexpr uint64_t kFewKeys = 100;  // in a bucket; with more, another salt is tried
constexpr int kMostSalts = 8;

struct Directory {
  uint64_t salt;
  uint64_t max_bucket;
  std::vector<uint32_t> start;  // (num_buckets + 1)
};

uint64_t hash_of(int64_t id, uint64_t salt) { return mix64(static_cast<uint64_t>(id) ^ salt); }

Directory directory_for(const SparringPackedPack& arguments, uint64_t num_buckets, uint64_t salt) {
  Directory directory{salt, 0, std::vector<uint32_t>(num_buckets + 1)};
  for (int64_t i = 0; i < arguments.count; ++i) {
    ++directory.start[bucket_of(hash_of(arguments.ids[i], salt), num_buckets) + 1];
  }
  for (uint64_t bucket = 0; bucket < num_buckets; ++bucket) {
    directory.max_bucket = std::max<uint64_t>(directory.max_bucket, directory.start[bucket + 1]);
    directory.start[bucket + 1] += directory.start[bucket];
  }
  return directory;
}

// Never 0: the highest bits of mix64 are the partition, so the ids of a file, which are in a range of
// partitions, would use only a small part of the buckets.
constexpr uint64_t salt_of(int number) {
  return mix64(static_cast<uint64_t>(number + 1) * 0x9e3779b97f4a7c15u);
}

// Ids that were chosen to fall into one bucket do not with another salt.
Directory best_directory(const SparringPackedPack& arguments, uint64_t num_buckets) {
  Directory best = directory_for(arguments, num_buckets, salt_of(0));
  for (int i = 1; i < kMostSalts && best.max_bucket > kFewKeys; ++i) {
    Directory other = directory_for(arguments, num_buckets, salt_of(i));
    if (other.max_bucket < best.max_bucket) best = std::move(other);
  }
  return best;
}

// Position of each id's record.
std::vector<uint32_t> places_of(const SparringPackedPack& arguments, const Directory& directory) {
  const uint64_t num_buckets = directory.start.size() - 1;
  std::vector<uint32_t> next(directory.start.begin(), directory.start.end() - 1);
  std::vector<uint32_t> places(static_cast<size_t>(arguments.count));
  for (int64_t i = 0; i < arguments.count; ++i) {
    const uint64_t bucket = bucket_of(hash_of(arguments.ids[i], directory.salt), num_buckets);
    places[static_cast<size_t>(i)] = next[bucket]++;
  }
  return places;
}

void check_unique(const Directory& directory, const std::vector<int64_t>& sorted) {
  std::vector<int64_t> bucket;
  for (size_t i = 0; i + 1 < directory.start.size(); ++i) {
    bucket.assign(sorted.begin() + directory.start[i], sorted.begin() + directory.start[i + 1]);
    std::sort(bucket.begin(), bucket.end());
    const auto twice = std::adjacent_find(bucket.begin(), bucket.end());
    if (twice != bucket.end()) refuse("id " + std::to_string(*twice) + " occurs twice; pass each id once");
  }
}

void check(const SparringPackedPack& arguments) {
  border::check_count(arguments.count);
  border::check_array(arguments.ids, arguments.count, "ids");
  border::check_given(arguments.table != nullptr, "table");
  border::check(arguments.count <= static_cast<int64_t>(kMostKeys),
                "a file has at most 2^32 - 1 ids; write more files", arguments.count);
  border::check(arguments.dim >= 1 && arguments.dim <= kMostDim, "dim must be from 1 to 65536",
                arguments.dim);
  border::check(is_dtype(arguments.dtype), "dtype must be a stored one, 0 to 4", arguments.dtype);
  border::check((is_dtype(arguments.source_dtype) && arguments.source_dtype != SPARRING_PACKED_INT4) ||
                    arguments.source_dtype == SPARRING_PACKED_STORED,
                "source_dtype must be one of FLOAT32, FLOAT16, BFLOAT16, INT8 and STORED",
                arguments.source_dtype);
  if (arguments.partition_begin < 0 || arguments.partition_begin >= arguments.partition_end ||
      arguments.partition_end > kNumPartitions) {
    refuse("partitions must be a range within [0, 4096); found [" +
           std::to_string(arguments.partition_begin) + ", " +
           std::to_string(arguments.partition_end) + ")");
  }
  for (int64_t i = 0; i < arguments.count; ++i) {
    const int partition = partition_of(arguments.ids[i]);
    if (partition < arguments.partition_begin || partition >= arguments.partition_end) {
      refuse("id " + std::to_string(arguments.ids[i]) + " is in partition " +
             std::to_string(partition) + ", which is not in the range of this file");
    }
  }
}

Header header_of(const SparringPackedPack& arguments, const Directory& directory) {
  const FileKind kind = arguments.embeddings == nullptr ? kErased : kRows;
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kFileVersion;
  header.kind = kind;
  header.dtype = static_cast<uint32_t>(arguments.dtype);
  header.dim = static_cast<uint32_t>(arguments.dim);
  header.row_bytes =
      kind == kErased ? 0 : static_cast<uint32_t>(row_bytes_of(arguments.dtype, arguments.dim));
  header.record_bytes = record_bytes_of(kind, arguments.dtype, arguments.dim);
  header.num_keys = static_cast<uint64_t>(arguments.count);
  header.num_buckets = directory.start.size() - 1;
  header.salt = directory.salt;
  header.max_bucket = static_cast<uint32_t>(directory.max_bucket);
  header.partition_begin = static_cast<uint16_t>(arguments.partition_begin);
  header.partition_end = static_cast<uint16_t>(arguments.partition_end);
  header.table_hash = fnv1a(std::string_view(arguments.table));
  header.checksum =
      fnv1a(std::string_view(reinterpret_cast<const char*>(&header), sizeof header - 8));
  return header;
}

// Writes the row of one embedding, and adds its rounding error.
class RowWriter {
 public:
  explicit RowWriter(SparringPackedPack& arguments)
      : arguments_(arguments),
        values_(static_cast<size_t>(arguments.dim)),
        stored_(static_cast<size_t>(arguments.dim)),
        row_(static_cast<size_t>(row_bytes_of(arguments.dtype, arguments.dim))) {}

  void write(int64_t at, uint8_t* row) {
    const auto* source = static_cast<const uint8_t*>(arguments_.embeddings) +
                         static_cast<uint64_t>(at) * arguments_.source_stride;
    if (arguments_.source_dtype == SPARRING_PACKED_STORED) {
      std::memcpy(row, source, row_.size());
      return;
    }
    const int64_t dim = arguments_.dim;
    decode_source(arguments_.source_dtype, source, dim, values_.data());
    const bool is_copied = arguments_.dtype == arguments_.source_dtype;
    const bool is_encoded = is_copied && arguments_.dtype == SPARRING_PACKED_INT8
                                ? convert_int8_row(source, dim, row_.data())
                                : encode_row(arguments_.dtype, values_.data(), dim, row_.data());
    if (!is_encoded) {
      refuse("the embedding of id " + std::to_string(arguments_.ids[at]) + " of table " +
             arguments_.table + " is not finite, or exceeds 65504: " +
             std::string(kDtypeNames[arguments_.dtype]) +
             " cannot represent it; store the table as fp32 or bf16");
    }
    std::memcpy(row, row_.data(), row_.size());
    if (is_copied) return;
    const void* const stored = row_.data();
    kPortableLoops.widen[arguments_.dtype]({&stored, 1, dim, stored_.data(), dim, false});
    for (int64_t i = 0; i < dim; ++i) {
      const auto column = static_cast<size_t>(i);
      const double value = values_[column];
      const double error = static_cast<double>(stored_[column]) - value;
      arguments_.square_error += error * error;
      arguments_.square_sum += value * value;
    }
  }

 private:
  SparringPackedPack& arguments_;
  std::vector<float> values_;
  std::vector<float> stored_;
  std::vector<uint8_t> row_;
};

}  // namespace

void pack(SparringPackedPack& arguments) {
  check(arguments);
  const uint64_t num_buckets =
      std::max<uint64_t>(1, (static_cast<uint64_t>(arguments.count) + kKeysPerBucket - 1) / kKeysPerBucket);
  const FileKind kind = arguments.embeddings == nullptr ? kErased : kRows;
  const Sections sections =
      sections_of(static_cast<uint64_t>(arguments.count), num_buckets,
                  record_bytes_of(kind, arguments.dtype, arguments.dim));
  const uint64_t room = arguments.file_bytes;
  arguments.file_bytes = sections.file_bytes;
  arguments.square_error = arguments.square_sum = 0;
  if (arguments.file == nullptr) return;
  if (room < sections.file_bytes) {
    refuse("file_bytes must be at least " + std::to_string(sections.file_bytes) + "; found " +
           std::to_string(room));
  }
  const Directory directory = best_directory(arguments, num_buckets);
  if (directory.max_bucket > kMostBucketKeys) {
    refuse(std::to_string(directory.max_bucket) + " ids of table " + arguments.table +
           " fall into one bucket, because an id occurs many times; pass each id once");
  }
  const Header header = header_of(arguments, directory);
  auto* const file = static_cast<uint8_t*>(arguments.file);
  std::memset(file, 0, sections.file_bytes);
  std::memcpy(file, &header, sizeof header);
  auto* const buckets = reinterpret_cast<Bucket*>(file + sections.buckets);
  for (uint64_t i = 0; i < num_buckets; ++i) {
    buckets[i].start = directory.start[i];
    buckets[i].count = static_cast<uint16_t>(directory.start[i + 1] - directory.start[i]);
  }
  const std::vector<uint32_t> places = places_of(arguments, directory);
  std::vector<int64_t> sorted(places.size());
  RowWriter writer(arguments);
  for (int64_t i = 0; i < arguments.count; ++i) {
    const uint32_t place = places[static_cast<size_t>(i)];
    const int64_t id = arguments.ids[i];
    sorted[place] = id;
    const uint64_t hash = hash_of(id, directory.salt);
    Bucket& bucket = buckets[bucket_of(hash, num_buckets)];
    const uint32_t at = place - bucket.start;
    if (at < kBucketDigests) bucket.digests[at] = static_cast<uint16_t>(hash);
    uint8_t* const record = file + sections.records + uint64_t{place} * header.record_bytes;
    std::memcpy(record, &id, 8);
    if (kind == kRows) writer.write(i, record + 8);
  }
  check_unique(directory, sorted);
}

}  // namespace sparring::packed
