#pragma once

#include <rocksdb/env.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

namespace sparring::flash {

// RocksDB's warnings and errors, in the file LOG of the folder.
//
// RocksDB would write that file itself, by the same means as its data, and builds with assertions,
// as Debian's, end the process when it writes on after a write that failed: a full disk would kill
// a training instead of failing a call. Here what cannot be written is left out.
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
