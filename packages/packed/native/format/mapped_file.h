// A regular file, mapped read-only; and small files that are read whole.
#ifndef SPARRING_PACKED_FORMAT_MAPPED_FILE_H_
#define SPARRING_PACKED_FORMAT_MAPPED_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sparring::packed {

// A folder, through whose descriptor its files are opened: no link is followed, and
// nothing outside of it is reached.
class Folder {
 public:
  // Throws StatusError(SPARRING_IO) where it cannot be opened.
  explicit Folder(const std::string& path);
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }

  // The bytes of a file. Throws StatusError: SPARRING_IO where there is none,
  // SPARRING_CORRUPT where it is longer than `most` bytes.
  std::string read(const std::string& name, uint64_t most) const;

  // The folders in this one that have a manifest and are no staging folders.
  std::vector<std::string> committed() const;

 private:
  std::string path_;
  int descriptor_;
};

// The bytes of one file, until this is destroyed.
//
// A file that is cut off while it is mapped ends the process when it is read (SIGBUS),
// as the system has it: files of a committed snapshot must be removed, never truncated.
class MappedFile {
 public:
  // Throws StatusError: SPARRING_IO, or SPARRING_CORRUPT where the length is another.
  MappedFile(const Folder& folder, const std::string& name, uint64_t size_bytes);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

  // From now on a part that is not in memory is read with what is around it, 2 MiB at a time
  // where the file system can; before, each page alone. Any thread may call it at any time.
  void read_ahead() const;

 private:
  const uint8_t* data_ = nullptr;
  uint64_t size_;
};

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_MAPPED_FILE_H_
