// The manifest of a serving snapshot. docs/format/packed.md describes its fields.
#ifndef SPARRING_PACKED_FORMAT_MANIFEST_H_
#define SPARRING_PACKED_FORMAT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparring::packed {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr uint64_t kMostManifestBytes = 64u << 20;

struct TableEntry {
  std::string name;
  int64_t dim = 0;
  int32_t dtype = 0;
  int32_t trained_dtype = 0;
  int64_t seed = 0;
  std::string initializer;  // kind
  double first = 0;         // its parameters, as returned by core's Initializer.parameters
  double second = 0;

  bool operator==(const TableEntry&) const = default;
};

struct FileEntry {
  std::string name;
  std::string kind;  // rows, erased; other kinds are ignored by this reader
  std::string table;
  int32_t partition_begin = 0;
  int32_t partition_end = 0;
  uint64_t num_keys = 0;
  uint64_t size_bytes = 0;
  std::string hash;
};

// A file of the model: its parameters or its preprocessing.
struct ModelEntry {
  std::string name;
  std::string kind;
  uint64_t size_bytes = 0;
  std::string hash;
};

// Version of a manifest with files of the model. Manifests without them have version 1.
inline constexpr int64_t kModelVersion = 2;

// Version of a manifest with a generation.
inline constexpr int64_t kGenerationVersion = 3;

struct Manifest {
  std::string hash;
  int64_t generation = 0;  // versions of a folder are ordered by generation, step and name
  int64_t step = 0;
  double published = 0;
  std::string base_name;  // empty for a full snapshot
  std::string base_hash;
  std::vector<TableEntry> tables;  // by name, ascending
  std::vector<FileEntry> files;
  std::vector<ModelEntry> model;  // all files of the model, also in a delta

  // Whether a snapshot with this manifest is used instead of one with a smaller name.
  bool is_newer_than(const Manifest& other) const {
    return std::pair(generation, step) >= std::pair(other.generation, other.step);
  }
};

// Throws StatusError(SPARRING_CORRUPT) with the reason.
Manifest parse_manifest(std::string_view text);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_MANIFEST_H_
