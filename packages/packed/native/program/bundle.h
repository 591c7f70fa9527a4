// The folder of an exported program: what it is bound to, and the hashes of its files.
#ifndef SPARRING_PACKED_PROGRAM_BUNDLE_H_
#define SPARRING_PACKED_PROGRAM_BUNDLE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sparring::program {

// What an export wrote for the program of a bundle.
struct Binding {
  std::string handle;
  std::vector<std::pair<std::string, int64_t>> dims;  // of each table

  bool is_exact() const { return handle.rfind("exact:", 0) == 0; }
  std::string hash() const {
    const size_t begin = handle.find(':') + 1;
    return handle.substr(begin, handle.find(':', begin) - begin);
  }
};

// Reads binding.txt of the folder `bundle`. Throws std::runtime_error if there is none.
Binding binding_of(const std::string& bundle);

// Reads every file that files.txt lists, and compares its size and its hash. Throws
// std::runtime_error that names the first file that is missing or damaged.
void check_files(const std::string& bundle);

}  // namespace sparring::program

#endif  // SPARRING_PACKED_PROGRAM_BUNDLE_H_
