#include "reader/packed_file.h"

#include <algorithm>

#include "format/xxh3.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw border::StatusError(SPARRING_CORRUPT, path + " is damaged: " + reason +
                                                  "; copy or publish the serving snapshot again");
}

}  // namespace

PackedFile::PackedFile(std::unique_ptr<const MappedFile> file, const std::string& path,
                       const FileEntry& entry, const TableEntry& table)
    : file_(std::move(file)), path_(path), hash_(entry.hash) {
  if (file_->size() < sizeof(Header)) refuse(path_, "it has no header");
  std::memcpy(&header_, file_->data(), sizeof header_);
  check(entry, table);
  const Sections sections =
      sections_of(header_.num_keys, header_.num_buckets, header_.record_bytes);
  view_ = {reinterpret_cast<const Bucket*>(file_->data() + sections.buckets),
           file_->data() + sections.records,
           header_.num_buckets,
           header_.salt,
           header_.num_keys,
           header_.max_bucket,
           header_.record_bytes};
}

void PackedFile::check(const FileEntry& entry, const TableEntry& table) const {
  const auto check = [&](bool is_right, const char* what) {
    if (!is_right) refuse(path_, std::string(what) + " of its header is wrong");
  };
  const auto bytes = reinterpret_cast<const char*>(&header_);
  const FileKind kind = entry.kind == "erased" ? kErased : kRows;
  const bool has_rows = kind == kRows;
  check(std::memcmp(header_.magic, kMagic, sizeof kMagic) == 0, "the magic");
  check(header_.version == kFileVersion, "the version");
  check(header_.checksum == fnv1a(std::string_view(bytes, sizeof header_ - 8)), "the checksum");
  check(header_.kind == kind, "the kind");
  check(header_.table_hash == fnv1a(table.name), "the table");
  check(header_.dim == table.dim, "dim");
  check(header_.dtype == static_cast<uint32_t>(table.dtype), "dtype");
  check(header_.row_bytes == (has_rows ? static_cast<uint64_t>(row_bytes_of(table.dtype, table.dim)) : 0),
        "row_bytes");
  check(header_.record_bytes == record_bytes_of(kind, table.dtype, table.dim), "record_bytes");
  check(header_.num_keys == entry.num_keys && header_.num_keys <= kMostKeys, "num_keys");
  check(header_.num_buckets >= 1 && header_.num_buckets <= kMostKeys, "num_buckets");
  check(header_.max_bucket <= kMostBucketKeys, "max_bucket");
  check(header_.partition_begin == entry.partition_begin &&
            header_.partition_end == entry.partition_end,
        "partitions");
  check(std::all_of(std::begin(header_.zeros), std::end(header_.zeros), [](uint8_t byte) { return byte == 0; }),
        "the reserved part");
  const Sections sections =
      sections_of(header_.num_keys, header_.num_buckets, header_.record_bytes);
  if (sections.file_bytes != file_->size()) {
    refuse(path_, "its header specifies " + std::to_string(sections.file_bytes) + " bytes, but it has " +
                      std::to_string(file_->size()));
  }
}

void PackedFile::verify() const {
  read_ahead();
  const std::string found = xxh3_128(file_->data(), file_->size());
  if (found != hash_) {
    refuse(path_, "it has the hash " + found + ", expected " + hash_ + " according to the manifest");
  }
}

void PackedFile::refuse_bucket(uint64_t bucket) const {
  refuse(path_, "bucket " + std::to_string(bucket) + " is out of range");
}

}  // namespace sparring::packed
