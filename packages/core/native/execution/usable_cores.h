// The number of cores that this process may use, which is the automatic size of the pool.
#pragma once

#include <filesystem>

namespace sparring::execution {

// The smaller of the affinity mask and the CPU quota of the process's cgroups (v1 and
// v2), at least 1. A quota of 2.5 cores counts as 2, because a third thread would be
// throttled most of the time.
int usable_cores();

// The automatic size of the pool: the usable cores, but at most OMP_NUM_THREADS if that is a
// positive number (for a list such as "4,2", its first number).
int default_threads();

// The quota only, in whole cores, or -1 if there is none. Reads
// `root`/proc/self/cgroup and `root`/sys/fs/cgroup; tests pass another root.
int quota_cores(const std::filesystem::path& root);

}  // namespace sparring::execution
