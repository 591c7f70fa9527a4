// The value of a file, which is read again when the file was replaced or written.
#ifndef SPARRING_SERVE_SERVER_WATCHED_FILE_H_
#define SPARRING_SERVE_SERVER_WATCHED_FILE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <utility>

#include "server/log.h"

namespace sparring::serve {

// Stamp of a file: a file with another stamp may have another content.
struct FileStamp {
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
  uint64_t inode = 0;
  int64_t size = -1;

  bool operator==(const FileStamp&) const = default;
};

// Returns the stamp of a file; a default stamp if it does not exist.
FileStamp stamp_of(const std::string& path);

// Returns the content of a file. Throws std::runtime_error.
std::string read_file(const std::string& path);

// If the file cannot be read or is invalid, the previous value remains, and a warning is logged once.
// Thread-safe.
template <class Value>
class WatchedFile {
 public:
  using Parse = std::function<Value(const std::string& content)>;  // throws std::runtime_error

  // Throws std::runtime_error if the first read fails.
  WatchedFile(std::string path, Parse parse) : path_(std::move(path)), parse_(std::move(parse)) {
    stamp_ = stamp_of(path_);
    value_ = std::make_shared<const Value>(parse_(read_file(path_)));
  }

  std::shared_ptr<const Value> value() {
    const FileStamp stamp = stamp_of(path_);
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      if (!(stamp == stamp_)) {
        value_ = std::make_shared<const Value>(parse_(read_file(path_)));
        stamp_ = stamp;
      }
      is_failing_ = false;
    } catch (const std::runtime_error& error) {  // attempted again at the next call
      if (!is_failing_) {
        log(LogLevel::kWarning,
            std::string(error.what()) + "; the previous content remains in use");
      }
      is_failing_ = true;
    }
    return value_;
  }

 private:
  const std::string path_;
  const Parse parse_;
  std::mutex mutex_;
  FileStamp stamp_;
  std::shared_ptr<const Value> value_;
  bool is_failing_ = false;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_WATCHED_FILE_H_
