#include "plain_log.h"

#include <algorithm>
#include <array>
#include <ctime>

namespace sparring::flash {
namespace {

constexpr size_t kMostBytes = 4 << 20;

}  // namespace

PlainLog::PlainLog(const std::string& folder)
    : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL), left_(kMostBytes) {
  const std::string path = folder + "/LOG";
  // Keeps the log of the previous process, which may show why it ended.
  std::rename(path.c_str(), (path + ".old").c_str());
  file_.reset(std::fopen(path.c_str(), "we"));
}

void PlainLog::Logv(const char* format, std::va_list arguments) {
  std::array<char, 1024> line;
  std::timespec now;
  std::timespec_get(&now, TIME_UTC);
  std::tm parts;
  gmtime_r(&now.tv_sec, &parts);
  size_t length = std::strftime(line.data(), line.size(), "%Y-%m-%dT%H:%M:%SZ ", &parts);
  const int written = std::vsnprintf(line.data() + length, line.size() - length, format, arguments);
  if (written < 0) return;
  length = std::min(length + static_cast<size_t>(written), line.size() - 2);
  line[length++] = '\n';
  const std::lock_guard lock(mutex_);
  if (file_ == nullptr || length > left_) return;
  left_ -= length;
  std::fwrite(line.data(), 1, length, file_.get());
  if (std::fflush(file_.get()) != 0) std::clearerr(file_.get());
}

}  // namespace sparring::flash
