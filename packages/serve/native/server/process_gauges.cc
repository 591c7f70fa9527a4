#include "server/process_gauges.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

namespace sparring::serve {

namespace {

const double kStartSeconds =
    std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();

// Returns the sum of the lines "NAME: N kB" of a file with one of two names in bytes; 0 if it has none.
double kibibyte_lines(const char* path, const std::string& first, const std::string& second) {
  std::ifstream file(path);
  double sum = 0;
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    const auto name = line.substr(0, colon);
    if (colon != std::string::npos && (name == first || name == second)) {
      sum += std::strtod(line.c_str() + colon + 1, nullptr) * 1024;
    }
  }
  return sum;
}

// Returns the limit of this container in bytes; 0 without a limit, whose file contains "max".
double container_limit() {
  for (const auto* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    double limit = 0;
    if (file >> limit) return limit;
  }
  return 0;
}

double memory_limit() {
  const auto machine = kibibyte_lines("/proc/meminfo", "MemTotal", "");
  const auto container = container_limit();
  return container > 0 && container < machine ? container : machine;
}

}  // namespace

void add_process_gauges(Metrics::Gauges& gauges) {
  static const double limit = memory_limit();
  gauges.emplace_back("start_seconds", kStartSeconds);
  const auto bytes = kibibyte_lines("/proc/self/status", "RssAnon", "RssShmem");
  if (bytes > 0) gauges.emplace_back("memory_bytes", bytes);
  if (limit > 0) gauges.emplace_back("memory_limit_bytes", limit);
}

}  // namespace sparring::serve
