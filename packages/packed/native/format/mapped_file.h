// Regular files that are mapped read-only, and small files that are read completely.
#ifndef SPARRING_PACKED_FORMAT_MAPPED_FILE_H_
#define SPARRING_PACKED_FORMAT_MAPPED_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sparring::packed {

// A folder whose files are opened relative to its descriptor: no link is followed, and no file
// outside of it is opened.
class Folder {
 public:
  // Throws StatusError: SPARRING_IO if it cannot be opened, SPARRING_CORRUPT if it is a symbolic link.
  explicit Folder(const std::string& path);
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }

  // Returns the bytes of a file. Throws StatusError: SPARRING_IO if it does not exist,
  // SPARRING_CORRUPT if it is longer than `most` bytes.
  std::string read(const std::string& name, uint64_t most) const;

  // Returns the folders in this one that have a manifest and are neither staging folders nor links.
  std::vector<std::string> committed() const;

 private:
  std::string path_;
  int descriptor_;
};

// The bytes of one file, mapped until this is destroyed.
//
// If a file is truncated while it is mapped, reading it ends the process (SIGBUS).
// Therefore files of a committed snapshot must be removed, never truncated.
class MappedFile {
 public:
  // Throws StatusError: SPARRING_IO, or SPARRING_CORRUPT if the length differs.
  MappedFile(const Folder& folder, const std::string& name, uint64_t size_bytes);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

  // After this call, a page fault reads the surrounding pages, too, 2 MiB at a time if the file system
  // supports it; before, each page is read separately. Thread-safe.
  void read_ahead() const;

 private:
  const uint8_t* data_ = nullptr;
  uint64_t size_;
};

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_MAPPED_FILE_H_
