#include "execution/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

namespace sparring::execution {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// Whole cores of `quota` microseconds per `period`, or -1 if there is no limit.
int whole_cores(const std::string& quota, const std::string& period) {
  const double allowed = std::strtod(quota.c_str(), nullptr);
  const double of = std::strtod(period.c_str(), nullptr);
  // No limit is "max" in v2 and -1 in v1; both fail the first comparison.
  if (!(allowed > 0) || !(of > 0)) return -1;
  return std::max(1, static_cast<int>(allowed / of));
}

int quota_of_v2(const fs::path& group) {
  std::istringstream line(first_line(group / "cpu.max").value_or(""));
  std::string quota, period;
  line >> quota >> period;
  return whole_cores(quota, period);
}

int quota_of_v1(const fs::path& group) {
  return whole_cores(first_line(group / "cpu.cfs_quota_us").value_or(""),
                     first_line(group / "cpu.cfs_period_us").value_or(""));
}

int smaller_limit(int a, int b) {
  if (a < 0) return b;
  if (b < 0) return a;
  return std::min(a, b);
}

// The limits of all groups above a group apply to it. Inside a container, the path may
// contain groups that are not mounted. They are skipped, but the root of the mount is
// always read.
template <typename QuotaOf>
int quota_along(const fs::path& mount, const std::string& group, QuotaOf quota_of) {
  int cores = quota_of(mount);
  fs::path at = mount;
  for (const fs::path& part : fs::path(group).relative_path()) {
    at /= part;
    cores = smaller_limit(cores, quota_of(at));
  }
  return cores;
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

int affinity_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
  // More than CPU_SETSIZE processors: the fixed mask is too small for the kernel.
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

int quota_cores(const fs::path& root) {
  std::ifstream groups(root / "proc/self/cgroup");
  const fs::path mounts = root / "sys/fs/cgroup";
  int cores = -1;
  // A line is hierarchy:controllers:path; v2 is hierarchy 0 with no controllers.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      cores = smaller_limit(cores, quota_along(mounts, group, quota_of_v2));
    } else if (lists_cpu(controllers)) {
      for (const char* mount : {"cpu", "cpu,cpuacct"}) {
        cores = smaller_limit(cores, quota_along(mounts / mount, group, quota_of_v1));
      }
    }
  }
  return cores;
}

int usable_cores() {
  return std::max(1, smaller_limit(quota_cores("/"), affinity_cores()));
}

int default_threads() {
  const char* const given = std::getenv("OMP_NUM_THREADS");
  const std::string text = given == nullptr ? "" : given;
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  int asked = 0;
  std::from_chars(text.data() + begin, text.data() + text.size(), asked);
  return asked > 0 ? std::min(asked, usable_cores()) : usable_cores();
}

}  // namespace sparring::execution
