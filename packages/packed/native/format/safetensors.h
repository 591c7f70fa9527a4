// The header of a safetensors file, such as parameters.safetensors of a serving snapshot.
#ifndef SPARRING_PACKED_FORMAT_SAFETENSORS_H_
#define SPARRING_PACKED_FORMAT_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sparring::packed {

// A named array in a file.
struct ArrayEntry {
  std::string name;
  std::string dtype;  // as in the file, for example F32
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offset of its first byte in the file
  uint64_t num_bytes = 0;
};

// Returns the arrays of a file by name. Throws StatusError(SPARRING_CORRUPT) with the reason, unless the
// arrays fill the file after its header, and each has the size of its shape and dtype.
std::vector<ArrayEntry> parse_safetensors(std::string_view file);

// Returns the JSON list in the metadata `names` of a file, or nothing if it has none.
std::vector<std::string> listed_names(std::string_view file);

// Writes a shape as "(2, 3)", for messages.
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_SAFETENSORS_H_
