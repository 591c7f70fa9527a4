// One version of all tables: layers of mapped files, the newest first. It never changes,
// so any number of threads may read it.
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

// The files of one kind of a table in one snapshot, found by partition.
class FileSet {
 public:
  // Throws StatusError(SPARRING_CORRUPT) where two files have a partition.
  void add(std::unique_ptr<PackedFile> file, int32_t begin, int32_t end);

  bool is_empty() const { return files_.empty(); }
  const std::vector<std::unique_ptr<PackedFile>>& files() const { return files_; }

  // The one that has all partitions, or NULL.
  const PackedFile* only_file() const { return covers_all_ ? files_[0].get() : nullptr; }

  // The file that may have the key, or NULL.
  const PackedFile* file_of(int64_t key) const {
    if (covers_all_) return files_[0].get();
    const uint16_t at = file_of_partition_[static_cast<size_t>(partition_of(key))];
    return at == 0 ? nullptr : files_[at - 1u].get();
  }

 private:
  std::vector<std::unique_ptr<PackedFile>> files_;
  std::vector<uint16_t> file_of_partition_;  // (4096): 1 + its place in files_, or 0
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
  std::string name;                           // of its folder
  std::vector<std::unique_ptr<TableLayer>> tables;  // by table number; NULL: the delta has none
  uint64_t mapped_bytes = 0;
  Partitions partitions;  // whose files are read

  // Compares the hash of every file of its partitions, of the filters too, which are not mapped.
  void verify() const;
  void read_ahead() const;  // as MappedFile, of all files

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

// Maps the files of one snapshot that have some of `partitions`.
// Throws StatusError: SPARRING_CORRUPT, SPARRING_IO.
std::shared_ptr<const Layer> map_layer(const std::string& path, Manifest manifest,
                                       const Partitions& partitions);

// Reads the manifest of a snapshot.
Manifest read_manifest(const std::string& path);

// `layers`, newest first, as a version. Throws StatusError where they do not go together.
std::shared_ptr<const Version> make_version(std::vector<std::shared_ptr<const Layer>> layers,
                                            const Partitions& partitions);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_VERSION_H_
