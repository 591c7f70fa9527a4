#include "reader/version.h"

#include <algorithm>
#include <utility>

#include "format/xxh3.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::StatusError;

constexpr size_t kMostFilesOfTable = 4096;

std::string described(const TableEntry& table) {
  return "dim " + std::to_string(table.dim) + ", " + std::string(kDtypeNames[table.dtype]) +
         ", trained as " + std::string(kDtypeNames[table.trained_dtype]) + ", seed " +
         std::to_string(table.seed) + ", initializer " + table.initializer + "(" +
         std::to_string(table.first) + ", " + std::to_string(table.second) + ")";
}

std::string listed(const std::vector<TableEntry>& tables) {
  std::string text;
  for (const TableEntry& table : tables) text += (text.empty() ? "" : ", ") + table.name;
  return text;
}

// Other kinds are filters of ids, which lookups do not use.
bool is_mapped(const FileEntry& entry) { return entry.kind == "rows" || entry.kind == "erased"; }

size_t place_of(const std::vector<TableEntry>& tables, const std::string& name) {
  return static_cast<size_t>(
      std::find_if(tables.begin(), tables.end(),
                   [&](const TableEntry& table) { return table.name == name; }) -
      tables.begin());
}

// Compares the hash of a file that is not mapped.
void verify_whole(const std::string& path, const std::string& name, uint64_t size_bytes,
                  const std::string& hash) {
  const MappedFile file(Folder(path), name, size_bytes);
  const std::string found =
      file.size() < kLeastHashedBytes ? "nothing: it is too short" : xxh3_128(file.data(), file.size());
  if (found != hash) {
    throw StatusError(SPARRING_CORRUPT, path + "/" + name + " is damaged: it has the hash " + found +
                                            ", expected " + hash +
                                            " according to the manifest; copy or publish the "
                                            "serving snapshot again");
  }
}

}  // namespace

void FileSet::add(std::unique_ptr<PackedFile> file, int32_t begin, int32_t end) {
  if (files_.size() == kMostFilesOfTable) {
    throw StatusError(SPARRING_CORRUPT, file->path() + ": its table has too many files");
  }
  if (file_of_partition_.empty()) file_of_partition_.resize(kNumPartitions);
  const auto first = file_of_partition_.begin() + begin;
  const auto last = file_of_partition_.begin() + end;
  if (std::any_of(first, last, [](uint16_t at) { return at != 0; })) {
    throw StatusError(SPARRING_CORRUPT, file->path() + " has the same partitions as another file");
  }
  files_.push_back(std::move(file));
  std::fill(first, last, static_cast<uint16_t>(files_.size()));
  covers_all_ = begin == 0 && end == kNumPartitions;
}

template <class Body>
void Layer::for_files(const Body& body) const {
  for (const auto& table : tables) {
    if (table == nullptr) continue;
    for (const auto& file : table->rows.files()) body(*file);
    for (const auto& file : table->erased.files()) body(*file);
  }
}

void Layer::verify() const {
  for_files([](const PackedFile& file) { file.verify(); });
  for (const FileEntry& entry : manifest.files) {
    if (!is_mapped(entry) && partitions.overlap(entry)) {
      verify_whole(path, entry.name, entry.size_bytes, entry.hash);
    }
  }
  for (const ModelEntry& entry : manifest.model) {
    verify_whole(path, entry.name, entry.size_bytes, entry.hash);
  }
}

void Layer::read_ahead() const {
  for_files([](const PackedFile& file) { file.read_ahead(); });
}

Manifest read_manifest(const std::string& path) {
  const Folder folder(path);
  const std::string text = folder.read(kManifestName, kMostManifestBytes);
  try {
    return parse_manifest(text);
  } catch (const StatusError& error) {
    throw StatusError(error.status(), path + "/" + kManifestName + ": " + error.what());
  }
}

std::shared_ptr<const Layer> map_layer(const std::string& path, Manifest manifest,
                                       const Partitions& partitions) {
  const Folder folder(path);
  auto layer = std::make_shared<Layer>();
  layer->manifest = std::move(manifest);
  layer->path = path;
  layer->partitions = partitions;
  layer->name = path.substr(path.find_last_of('/') + 1);
  const std::vector<TableEntry>& tables = layer->manifest.tables;
  layer->tables.resize(tables.size());
  // Maps all files before reading one, so that page faults of the first pages overlap.
  std::vector<std::pair<const FileEntry*, std::unique_ptr<const MappedFile>>> mapped;
  for (const FileEntry& entry : layer->manifest.files) {
    if (!is_mapped(entry) || !partitions.overlap(entry)) continue;
    mapped.emplace_back(&entry, std::make_unique<MappedFile>(folder, entry.name, entry.size_bytes));
  }
  for (const ModelEntry& entry : layer->manifest.model) {
    layer->model.push_back(std::make_unique<MappedFile>(folder, entry.name, entry.size_bytes));
  }
  for (auto& [entry, bytes] : mapped) {
    const size_t place = place_of(tables, entry->table);
    layer->mapped_bytes += bytes->size();
    auto file = std::make_unique<PackedFile>(std::move(bytes), path + "/" + entry->name, *entry,
                                             tables[place]);
    auto& table = layer->tables[place];
    if (table == nullptr) table = std::make_unique<TableLayer>();
    (entry->kind == "erased" ? table->erased : table->rows)
        .add(std::move(file), entry->partition_begin, entry->partition_end);
  }
  return layer;
}

std::shared_ptr<const Version> make_version(std::vector<std::shared_ptr<const Layer>> layers,
                                            const Partitions& partitions) {
  auto version = std::make_shared<Version>();
  version->partitions = partitions;
  for (const TableEntry& entry : layers.back()->manifest.tables) {
    version->tables.push_back({entry, initializer_of(entry),
                               row_bytes_of(entry.dtype, entry.dim), 0, {}});
  }
  const std::vector<TableEntry>& full = layers.back()->manifest.tables;
  for (const auto& layer : layers) {
    version->mapped_bytes += layer->mapped_bytes;
    const std::vector<TableEntry>& tables = layer->manifest.tables;
    for (size_t i = 0; i < tables.size(); ++i) {
      const size_t place = place_of(full, tables[i].name);
      if (place == full.size()) {
        throw StatusError(SPARRING_INVALID_ARGUMENT,
                          "serving snapshot " + layer->name + " has table " + tables[i].name +
                              ", but its base has " + listed(full) + "; publish a full snapshot");
      }
      if (tables[i] != full[place]) {
        throw StatusError(SPARRING_INVALID_ARGUMENT,
                          "table " + tables[i].name + " of serving snapshot " + layer->name +
                              " has " + described(tables[i]) + ", but its base has " +
                              described(full[place]) + "; publish a full snapshot");
      }
      const TableLayer* const table = layer->tables[i].get();
      if (table == nullptr) continue;
      version->tables[place].layers.push_back(table);
      for (const auto& file : table->rows.files()) {
        version->tables[place].num_rows += static_cast<int64_t>(file->num_keys());
      }
    }
  }
  version->layers = std::move(layers);
  return version;
}

}  // namespace sparring::packed
