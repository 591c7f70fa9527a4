#include "format/manifest.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "format/dtype.h"
#include "format/json.h"
#include "format/layout.h"
#include "format/xxh3.h"
#include "sparring/initial_value.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::StatusError;

constexpr int64_t kMostWhole = int64_t{1} << 62;

[[noreturn]] void refuse(const std::string& message) {
  throw StatusError(SPARRING_CORRUPT, message);
}

bool is_hexadecimal(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Whether the name is a single path component without a leading dot.
bool is_name(std::string_view text) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  return !text.empty() && text.size() <= 255 && text[0] != '.' && text[0] != '-' &&
         text.find_first_not_of(kAllowed) == std::string_view::npos;
}

const std::string& name_of(const Json& value, const char* what) {
  const std::string& text = value.text(what);
  if (!is_name(text)) refuse(std::string(what) + " '" + text.substr(0, 80) + "' is not a valid file name");
  return text;
}

const std::string& hash_of(const Json& value) {
  const std::string& text = value.text("hash");
  if (!is_hexadecimal(text)) refuse("a hash must have 32 hexadecimal digits");
  return text;
}

int32_t dtype_named(const std::string& name, const char* what) {
  for (int32_t dtype = 0; dtype < kNumDtypes; ++dtype) {
    if (name == kDtypeNames[dtype]) return dtype;
  }
  refuse(std::string(what) + " '" + name.substr(0, 80) + "' is unknown");
}

TableEntry table_of(const Json& value) {
  TableEntry table;
  table.name = name_of(value.at("name"), "table");
  table.dim = value.at("dim").whole("dim", 1, kMostDim);
  table.dtype = dtype_named(value.at("dtype").text("dtype"), "dtype");
  table.trained_dtype = dtype_named(value.at("trained_dtype").text("trained_dtype"), "trained_dtype");
  if (table.trained_dtype == SPARRING_PACKED_INT4) {
    refuse("trained_dtype must be fp32, fp16, bf16 or int8");
  }
  table.seed = value.at("seed").whole("seed", INT64_MIN, INT64_MAX);
  const Json& initializer = value.at("initializer");
  table.initializer = initializer.at("kind").text("kind");
  table.first = initializer.at("first").number("first");
  table.second = initializer.at("second").number("second");
  InitialKind kind;
  if (!initial_kind_named(table.initializer, &kind)) {
    refuse("initializer '" + table.initializer.substr(0, 80) + "' of table " + table.name +
           " is unknown");
  }
  if (!std::isfinite(table.first) || !std::isfinite(table.second)) {
    refuse("numbers of an initializer must be finite");
  }
  return table;
}

FileEntry file_of(const Json& value) {
  FileEntry file;
  file.name = name_of(value.at("name"), "file");
  file.kind = value.at("kind").text("kind");
  file.table = name_of(value.at("table"), "table");
  const Json::Array& partitions = value.at("partitions").array("partitions");
  if (partitions.size() != 2) refuse("partitions of file " + file.name + " are not a range");
  file.partition_begin = static_cast<int32_t>(partitions[0].whole("partitions", 0, kNumPartitions));
  file.partition_end = static_cast<int32_t>(partitions[1].whole("partitions", 0, kNumPartitions));
  if (file.partition_begin >= file.partition_end) {
    refuse("partitions of file " + file.name + " are not a range");
  }
  file.num_keys = static_cast<uint64_t>(value.at("num_keys").whole("num_keys", 0, kMostKeys));
  file.size_bytes = static_cast<uint64_t>(value.at("size_bytes").whole("size_bytes", 0, kMostWhole));
  file.hash = hash_of(value.at("hash"));
  return file;
}

ModelEntry model_file_of(const Json& value) {
  ModelEntry file;
  file.name = name_of(value.at("name"), "file");
  file.kind = value.at("kind").text("kind");
  const auto least = static_cast<int64_t>(kLeastHashedBytes);
  file.size_bytes = static_cast<uint64_t>(value.at("size_bytes").whole("size_bytes", least, kMostWhole));
  file.hash = hash_of(value.at("hash"));
  return file;
}

// Removes the last line, which contains the hash of the preceding text.
std::string_view without_hash(std::string_view text, std::string* hash) {
  constexpr std::string_view kHead = "\n \"hash\": \"";
  constexpr std::string_view kTail = "\"\n}\n";
  constexpr size_t kBytes = kHead.size() + 32 + kTail.size();
  if (text.size() < kBytes + kLeastHashedBytes || !text.ends_with(kTail) ||
      text.substr(text.size() - kBytes, kHead.size()) != kHead) {
    refuse("it does not end with its hash, so it is truncated or not a manifest");
  }
  const std::string_view body = text.substr(0, text.size() - kBytes);
  *hash = text.substr(body.size() + kHead.size(), 32);
  const std::string found = xxh3_128(body.data(), body.size());
  if (*hash != found) refuse("its bytes have the hash " + found + ", expected " + hash->substr(0, 32));
  return body;
}

}  // namespace

Manifest parse_manifest(std::string_view text) {
  Manifest manifest;
  without_hash(text, &manifest.hash);
  const Json json = Json::parse(text);
  if (json.at("format").text("format") != "sparring serving snapshot") {
    refuse("its format is '" + json.at("format").text("format").substr(0, 80) +
           "', expected 'sparring serving snapshot'; create one with sparring_packed.write");
  }
  const int64_t version = json.at("version").whole("version", 1, kMostWhole);
  if (version > kGenerationVersion) {
    refuse("its format has version " + std::to_string(version) + ", but this library reads versions up to " +
           std::to_string(kGenerationVersion) + "; use a later release of sparring-packed");
  }
  manifest.step = json.at("step").whole("step", 0, kMostWhole);
  manifest.published = json.at("published").number("published");
  if (const Json& base = json.at("base"); !base.is_null()) {
    manifest.base_name = name_of(base.at("name"), "base");
    manifest.base_hash = hash_of(base.at("hash"));
  }
  for (const Json& table : json.at("tables").array("tables")) {
    manifest.tables.push_back(table_of(table));
  }
  if (manifest.tables.empty()) refuse("it has no tables");
  std::sort(manifest.tables.begin(), manifest.tables.end(),
            [](const TableEntry& a, const TableEntry& b) { return a.name < b.name; });
  for (size_t i = 1; i < manifest.tables.size(); ++i) {
    if (manifest.tables[i].name == manifest.tables[i - 1].name) refuse("a table is listed twice");
  }
  std::set<std::string> names;
  for (const Json& value : json.at("files").array("files")) {
    FileEntry file = file_of(value);
    if (!names.insert(file.name).second) refuse("file " + file.name + " is listed twice");
    const bool is_known = std::any_of(manifest.tables.begin(), manifest.tables.end(),
                                      [&](const TableEntry& table) { return table.name == file.table; });
    if (!is_known) refuse("file " + file.name + " belongs to table " + file.table + ", which is not listed");
    manifest.files.push_back(std::move(file));
  }
  if (version < kModelVersion) return manifest;
  for (const Json& value : json.at("model").array("model")) {
    ModelEntry file = model_file_of(value);
    if (!names.insert(file.name).second) refuse("file " + file.name + " is listed twice");
    manifest.model.push_back(std::move(file));
  }
  if (version == kGenerationVersion) {
    manifest.generation = json.at("generation").whole("generation", 1, kMostWhole);
  } else if (manifest.model.empty()) {
    refuse("it has version 2, but no files of the model");
  }
  return manifest;
}

}  // namespace sparring::packed
