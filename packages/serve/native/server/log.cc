#include "server/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

namespace sparring::serve {

namespace {

LogLevel least = LogLevel::kInfo;  // set before other threads start

constexpr const char* kNames[] = {"INFO", "WARNING", "ERROR"};

}  // namespace

void set_log_level(std::string_view level) {
  least = level == "error" ? LogLevel::kError : LogLevel::kInfo;
}

void log(LogLevel level, const std::string& message) {
  if (level < least) return;
  timeval now{};
  gettimeofday(&now, nullptr);
  std::tm local{};
  localtime_r(&now.tv_sec, &local);
  char text[64];
  const size_t size = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  std::string line(text, size);
  std::snprintf(text, sizeof text, ",%03d ", static_cast<int>(now.tv_usec / 1000));
  line += text;
  line += kNames[static_cast<int>(level)];
  line += ' ';
  line += message;
  line += '\n';
  // One call, so that lines of several threads do not mix.
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace sparring::serve
