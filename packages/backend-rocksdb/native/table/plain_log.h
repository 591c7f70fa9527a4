#pragma once

#include <rocksdb/env.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

namespace sparring::flash {

// Writes RocksDB's warnings and errors to the file LOG of the folder.
//
// RocksDB's own logger writes like its data files, and builds with assertions, such as Debian's, abort
// the process if they write again after a failed write: a full disk would kill a training process
// instead of failing a call. This logger ignores failed writes.
class PlainLog final : public rocksdb::Logger {
 public:
  explicit PlainLog(const std::string& folder);

  using rocksdb::Logger::Logv;
  void Logv(const char* format, std::va_list arguments) override;

 private:
  struct Closing {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::mutex mutex_;
  std::unique_ptr<std::FILE, Closing> file_;
  size_t left_;
};

}  // namespace sparring::flash
