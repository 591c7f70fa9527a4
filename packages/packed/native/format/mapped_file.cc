#include "format/mapped_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "format/manifest.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::StatusError;

constexpr int kRead = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

[[noreturn]] void refuse_io(const std::string& what) {
  throw StatusError(SPARRING_IO, what + " cannot be read: " + std::strerror(errno));
}

[[noreturn]] void refuse(const std::string& message) {
  throw StatusError(SPARRING_CORRUPT, message);
}

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Returns the length of a regular file.
uint64_t length_of(int descriptor, const std::string& what) {
  struct stat found;
  if (::fstat(descriptor, &found) != 0) refuse_io(what);
  if (!S_ISREG(found.st_mode)) refuse(what + " is not a regular file");
  return static_cast<uint64_t>(found.st_size);
}

bool is_link(int folder, const std::string& name) {
  struct stat found;
  return ::fstatat(folder, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode);
}

}  // namespace

Folder::Folder(const std::string& path)
    : path_(path),
      descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
  if (descriptor_ >= 0) return;
  const int error = errno;
  if (is_link(AT_FDCWD, path)) {
    refuse("folder " + path + " is a symbolic link, which is not followed; copy the folder");
  }
  errno = error;
  refuse_io("folder " + path);
}

Folder::~Folder() { ::close(descriptor_); }

std::string Folder::read(const std::string& name, uint64_t most) const {
  const std::string what = path_ + "/" + name;
  const Descriptor file(::openat(descriptor_, name.c_str(), kRead));
  if (file.get() < 0) refuse_io(what);
  const uint64_t size = length_of(file.get(), what);
  if (size > most) {
    refuse(what + " has " + std::to_string(size) + " bytes, expected at most " + std::to_string(most));
  }
  std::string text(size, '\0');
  uint64_t at = 0;
  while (at < size) {
    const ssize_t count = ::read(file.get(), text.data() + at, size - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_io(what);
    if (count == 0) refuse(what + " ends at " + std::to_string(at));
    at += static_cast<uint64_t>(count);
  }
  return text;
}

std::vector<std::string> Folder::committed() const {
  const int copy = ::openat(descriptor_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = copy < 0 ? nullptr : ::fdopendir(copy);
  if (stream == nullptr) {
    if (copy >= 0) ::close(copy);
    refuse_io("folder " + path_);
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    struct stat found;
    if (name[0] != '.' && !is_link(descriptor_, name) &&
        ::fstatat(descriptor_, (name + "/" + kManifestName).c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) {
      names.push_back(name);
    }
  }
  ::closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

MappedFile::MappedFile(const Folder& folder, const std::string& name, uint64_t size_bytes)
    : size_(size_bytes) {
  const std::string what = folder.path() + "/" + name;
  const Descriptor file(::openat(folder.descriptor(), name.c_str(), kRead));
  if (file.get() < 0) refuse_io(what);
  const uint64_t found = length_of(file.get(), what);
  if (found != size_bytes || found == 0) {
    refuse(what + " has " + std::to_string(found) + " bytes, expected " +
           std::to_string(size_bytes));
  }
  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) refuse_io(what);
  // The first lookups in a file that is not in memory need a few pages, without those around them.
  // The first page is read next.
  ::madvise(data, size_, MADV_RANDOM);
  ::posix_fadvise(file.get(), 0, 1, POSIX_FADV_WILLNEED);
  data_ = static_cast<const uint8_t*>(data);
}

void MappedFile::read_ahead() const {
  void* const data = const_cast<uint8_t*>(data_);
  ::madvise(data, size_, MADV_NORMAL);
#if defined(MADV_HUGEPAGE)
  // Rows are read in random order, about one page each. With pages of 2 MiB, if the file system supports
  // them, most addresses are in the TLB.
  ::madvise(data, size_, MADV_HUGEPAGE);
#endif
}

MappedFile::~MappedFile() { ::munmap(const_cast<uint8_t*>(data_), size_); }

}  // namespace sparring::packed
