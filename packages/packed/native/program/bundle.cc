#include "program/bundle.h"

#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "sparring/hash_string.h"

namespace sparring::program {
namespace {

constexpr std::string_view kFileList = "files.txt";
constexpr std::string_view kFileListFormat = "sparring-program-files/1 ";
constexpr size_t kHashDigits = 16;
constexpr const char* kAdvice = "; copy the bundle again, or export the program again";

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string content;
  if (file && file.tellg() >= 0) {
    content.resize(static_cast<size_t>(file.tellg()));
    file.seekg(0);
    if (file.read(content.data(), static_cast<std::streamsize>(content.size()))) return content;
  }
  throw std::runtime_error(path + " is missing or cannot be read" + kAdvice);
}

// XXH3-64 as 16 hexadecimal digits, like `xxhsum -H3`.
std::string hash_of(std::string_view content) {
  char digits[kHashDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(hash_string(content.data(), content.size())));
  return digits;
}

[[noreturn]] void refuse_list(const std::string& bundle) {
  throw std::runtime_error(bundle + "/" + std::string(kFileList) + " is damaged" + kAdvice);
}

}  // namespace

Binding binding_of(const std::string& bundle) {
  std::ifstream file(bundle + "/binding.txt");
  Binding found;
  if (!file || !std::getline(file, found.handle) || found.handle.find(':') == std::string::npos) {
    throw std::runtime_error("no bundle of a program at " + bundle +
                             ": expected the folder that export_program wrote, with binding.txt");
  }
  std::string line;
  while (std::getline(file, line)) {
    const size_t blank = line.find(' ');
    if (blank == std::string::npos) {
      throw std::runtime_error(bundle + "/binding.txt is damaged" + kAdvice);
    }
    found.dims.emplace_back(line.substr(blank + 1), std::stoll(line.substr(0, blank)));
  }
  return found;
}

void check_files(const std::string& bundle) {
  const std::string list = content_of(bundle + "/" + std::string(kFileList));
  const std::string_view text = list;
  const size_t header = kFileListFormat.size() + kHashDigits + 1;
  if (text.size() < header || text.substr(0, kFileListFormat.size()) != kFileListFormat ||
      text[header - 1] != '\n' || text.back() != '\n' ||
      text.substr(kFileListFormat.size(), kHashDigits) != hash_of(text.substr(header))) {
    refuse_list(bundle);
  }
  for (size_t begin = header; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.size() < kHashDigits + 2 || line[kHashDigits] != ' ') refuse_list(bundle);
    const std::string path = bundle + "/" + std::string(line.substr(kHashDigits + 1));
    const std::string found = hash_of(content_of(path));
    if (found != line.substr(0, kHashDigits)) {
      throw std::runtime_error(path + " is damaged: its bytes have the hash " + found +
                               ", expected " + std::string(line.substr(0, kHashDigits)) + kAdvice);
    }
  }
}

}  // namespace sparring::program
