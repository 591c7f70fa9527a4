// The automatic size of the pool, on simulated systems.
#include "execution/usable_cores.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "testing/check.h"

namespace sparring::execution {
namespace {

namespace fs = std::filesystem;

class PretendedRoot {
 public:
  PretendedRoot() {
    std::string name = (fs::temp_directory_path() / "sparring-cores-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~PretendedRoot() { fs::remove_all(path); }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((path / file).parent_path());
    std::ofstream(path / file) << text << "\n";
  }
  fs::path path;
};

void no_cgroup_files_mean_no_quota() {
  const PretendedRoot root;
  CHECK(quota_cores(root.path) == -1);
  root.write("proc/self/cgroup", "0::/user\nnonsense");
  root.write("sys/fs/cgroup/user/cpu.max", "max 100000");
  CHECK(quota_cores(root.path) == -1);
}

void v2_quota_is_the_tightest_on_the_path_rounded_down() {
  const PretendedRoot root;
  root.write("proc/self/cgroup", "0::/a/b");
  root.write("sys/fs/cgroup/cpu.max", "max 100000");
  root.write("sys/fs/cgroup/a/cpu.max", "250000 100000");
  root.write("sys/fs/cgroup/a/b/cpu.max", "800000 100000");
  CHECK(quota_cores(root.path) == 2);
  root.write("sys/fs/cgroup/a/b/cpu.max", "50000 100000");
  CHECK(quota_cores(root.path) == 1);
}

void v1_quota_is_read_beside_other_controllers() {
  const PretendedRoot root;
  root.write("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/jobs\n0::/");
  root.write("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "300000");
  root.write("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000");
  CHECK(quota_cores(root.path) == 3);
  root.write("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "-1");
  CHECK(quota_cores(root.path) == -1);
}

void there_is_always_one_core() { CHECK(usable_cores() >= 1); }

}  // namespace
}  // namespace sparring::execution

int main() {
  using namespace sparring::execution;
  return sparring::testing::run({
      {"no cgroup files mean no quota", no_cgroup_files_mean_no_quota},
      {"a v2 quota is the tightest on the path, rounded down",
       v2_quota_is_the_tightest_on_the_path_rounded_down},
      {"a v1 quota is read among other controllers", v1_quota_is_read_beside_other_controllers},
      {"there is always one core", there_is_always_one_core},
  });
}
