#include "format/safetensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "format/json.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::StatusError;

constexpr uint64_t kPrefixBytes = 8;
constexpr uint64_t kMostHeaderBytes = 64u << 20;
constexpr size_t kMostDims = 16;
constexpr int64_t kMostWhole = int64_t{1} << 62;

[[noreturn]] void refuse(const std::string& message) {
  throw StatusError(SPARRING_CORRUPT, message);
}

uint64_t item_bytes(const std::string& dtype) {
  static const std::map<std::string, uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"U16", 2}, {"I16", 2}, {"F16", 2}, {"BF16", 2},
      {"U32", 4},  {"I32", 4}, {"F32", 4}, {"U64", 8}, {"I64", 8}, {"F64", 8}};
  const auto found = sizes.find(dtype);
  if (found == sizes.end()) refuse("the dtype '" + dtype.substr(0, 20) + "' is unknown");
  return found->second;
}

ArrayEntry array_of(const std::string& name, const Json& value, uint64_t data_begin, uint64_t data_bytes) {
  ArrayEntry array;
  array.name = name;
  array.dtype = value.at("dtype").text("dtype");
  uint64_t expected = item_bytes(array.dtype);
  const Json::Array& shape = value.at("shape").array("shape");
  if (shape.size() > kMostDims) refuse("array '" + name.substr(0, 80) + "' has too many dimensions");
  for (const Json& size : shape) {
    array.shape.push_back(size.whole("shape", 0, kMostWhole));
    if (__builtin_mul_overflow(expected, static_cast<uint64_t>(array.shape.back()), &expected)) {
      refuse("array '" + name.substr(0, 80) + "' is larger than the file");
    }
  }
  const Json::Array& offsets = value.at("data_offsets").array("data_offsets");
  if (offsets.size() != 2) refuse("data_offsets must be two numbers");
  const auto most = static_cast<int64_t>(data_bytes);
  const auto begin = static_cast<uint64_t>(offsets[0].whole("data_offsets", 0, most));
  const auto end = static_cast<uint64_t>(offsets[1].whole("data_offsets", 0, most));
  if (begin > end || end - begin != expected) {
    refuse("array '" + name.substr(0, 80) + "' has the bytes " + std::to_string(begin) + " to " +
           std::to_string(end) + ", expected " + std::to_string(expected) + " bytes");
  }
  array.begin = data_begin + begin;
  array.num_bytes = expected;
  return array;
}

// Returns the header of a file, and the offset of the data after it.
std::pair<Json, uint64_t> header_of(std::string_view file) {
  uint64_t header_bytes = 0;
  if (file.size() >= kPrefixBytes) std::memcpy(&header_bytes, file.data(), kPrefixBytes);
  if (file.size() < kPrefixBytes || header_bytes > std::min(kMostHeaderBytes, file.size() - kPrefixBytes)) {
    refuse("it is not a safetensors file: its header has " + std::to_string(header_bytes) +
           " bytes, but the file has " + std::to_string(file.size()));
  }
  return {Json::parse(file.substr(kPrefixBytes, header_bytes)), kPrefixBytes + header_bytes};
}

}  // namespace

std::vector<ArrayEntry> parse_safetensors(std::string_view file) {
  const auto [header, data_begin] = header_of(file);
  std::vector<ArrayEntry> arrays;
  for (const auto& [name, value] : header.object("the header")) {
    if (name != "__metadata__") {
      arrays.push_back(array_of(name, value, data_begin, file.size() - data_begin));
    }
  }
  std::vector<const ArrayEntry*> by_place;
  for (const ArrayEntry& array : arrays) by_place.push_back(&array);
  std::sort(by_place.begin(), by_place.end(), [](const ArrayEntry* a, const ArrayEntry* b) {
    return std::pair(a->begin, a->num_bytes) < std::pair(b->begin, b->num_bytes);
  });
  uint64_t end = data_begin;
  for (const ArrayEntry* array : by_place) {
    if (array->begin != end) refuse("array '" + array->name.substr(0, 80) + "' overlaps or follows a gap");
    end += array->num_bytes;
  }
  if (end != file.size()) refuse("there are bytes that belong to no array");
  return arrays;
}

std::vector<std::string> listed_names(std::string_view file) {
  const Json header = header_of(file).first;
  const Json::Object& members = header.object("the header");
  const auto metadata = members.find("__metadata__");
  if (metadata == members.end()) return {};
  const Json::Object& values = metadata->second.object("__metadata__");
  const auto names = values.find("names");
  if (names == values.end()) return {};
  std::vector<std::string> found;
  const Json list = Json::parse(names->second.text("names"));
  for (const Json& name : list.array("names")) found.push_back(name.text("names"));
  return found;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "(" + text + ")";
}

}  // namespace sparring::packed
