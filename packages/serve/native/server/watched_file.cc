#include "server/watched_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace sparring::serve {

FileStamp stamp_of(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {found.st_mtim.tv_sec, found.st_mtim.tv_nsec, found.st_ino, found.st_size};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path + ": " + std::strerror(errno) +
                             "; check the path and its permissions");
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace sparring::serve
