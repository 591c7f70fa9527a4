// One version of all tables: layers of mapped files, newest first. It is immutable, so any
// number of threads may read it.
#ifndef SPARRING_PACKED_READER_VERSION_H_
#define SPARRING_PACKED_READER_VERSION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "format/manifest.h"
#include "reader/packed_file.h"
#include "rows/initial_values.h"

namespace sparring::packed {

struct Partitions {
  int32_t begin = 0;
  int32_t end = kNumPartitions;

  bool has(int partition) const { return begin <= partition && partition < end; }
  bool overlap(const FileEntry& file) const {
    return begin < file.partition_end && file.partition_begin < end;
  }
};

// The files of one kind and table in one snapshot, by partition.
class FileSet {
 public:
  // Throws StatusError(SPARRING_CORRUPT) if another file has the same partition.
  void add(std::unique_ptr<PackedFile> file, int32_t begin, int32_t end);

  bool is_empty() const { return files_.empty(); }
  const std::vector<std::unique_ptr<PackedFile>>& files() const { return files_; }

  // The file that contains all partitions, or NULL.
  const PackedFile* only_file() const { return covers_all_ ? files_[0].get() : nullptr; }

  // The file that may contain the key, or NULL.
  const PackedFile* file_of(int64_t key) const {
    if (covers_all_) return files_[0].get();
    const uint16_t at = file_of_partition_[static_cast<size_t>(partition_of(key))];
    return at == 0 ? nullptr : files_[at - 1u].get();
  }

 private:
  std::vector<std::unique_ptr<PackedFile>> files_;
  std::vector<uint16_t> file_of_partition_;  // (4096): 1 + index in files_, or 0
  bool covers_all_ = false;
};

// A table in one snapshot.
struct TableLayer {
  FileSet rows;
  FileSet erased;
};

// The files of one snapshot, a full one or a delta.
struct Layer {
  Manifest manifest;
  std::string path;
  std::string name;                           // name of its folder
  std::vector<std::unique_ptr<TableLayer>> tables;  // by table number; NULL if not in the delta
  std::vector<std::unique_ptr<const MappedFile>> model;  // the files of manifest.model
  uint64_t mapped_bytes = 0;
  Partitions partitions;  // partitions whose files are mapped

  // Compares the hash of every file of its partitions, including filters, which are not mapped.
  void verify() const;
  void read_ahead() const;  // for all files; see MappedFile

 private:
  template <class Body>
  void for_files(const Body& body) const;
};

struct Table {
  TableEntry entry;
  TableInitializer initial;
  int64_t row_bytes;
  int64_t num_rows;
  std::vector<const TableLayer*> layers;  // newest first
};

struct Version {
  std::vector<std::shared_ptr<const Layer>> layers;  // newest first
  std::vector<Table> tables;                         // by name
  Partitions partitions;
  uint64_t mapped_bytes = 0;

  const Manifest& manifest() const { return layers.front()->manifest; }
};

inline constexpr size_t kMostLayers = 64;

// Maps the files of one snapshot that overlap `partitions`.
// Throws StatusError: SPARRING_CORRUPT, SPARRING_IO.
std::shared_ptr<const Layer> map_layer(const std::string& path, Manifest manifest,
                                       const Partitions& partitions);

// Reads the manifest of a snapshot.
Manifest read_manifest(const std::string& path);

// Creates a version from `layers`, newest first. Throws StatusError if they do not match.
std::shared_ptr<const Version> make_version(std::vector<std::shared_ptr<const Layer>> layers,
                                            const Partitions& partitions);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_VERSION_H_
