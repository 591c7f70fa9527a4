// The folder of an exported program: its binding, and the hashes of its files.
#ifndef SPARRING_PACKED_PROGRAM_BUNDLE_H_
#define SPARRING_PACKED_PROGRAM_BUNDLE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sparring::program {

// The binding that an export wrote for the program of a bundle.
struct Binding {
  std::string handle;
  std::vector<std::pair<std::string, int64_t>> dims;  // of each table

  bool is_exact() const { return handle.rfind("exact:", 0) == 0; }
  std::string hash() const {
    const size_t begin = handle.find(':') + 1;
    return handle.substr(begin, handle.find(':', begin) - begin);
  }
};

// Reads binding.txt of the folder `bundle`. Throws std::runtime_error if it does not exist.
Binding binding_of(const std::string& bundle);

// Reads every file that is listed in files.txt, and compares its size and its hash. Throws
// std::runtime_error with the name of the first file that is missing or damaged.
void check_files(const std::string& bundle);

}  // namespace sparring::program

#endif  // SPARRING_PACKED_PROGRAM_BUNDLE_H_
