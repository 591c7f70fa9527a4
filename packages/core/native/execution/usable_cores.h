// How many cores this process may really use: the automatic size of the pool.
#pragma once

#include <filesystem>

namespace sparring::execution {

// The smaller of the affinity mask and the CPU quota of the cgroups (v1 and v2)
// that the process lives in, at least 1. A quota of 2.5 cores counts as 2: a
// third thread would spend most of its time throttled.
int usable_cores();

// The automatic size of the pool: the usable cores, but no more than OMP_NUM_THREADS, if that is a
// positive number (of a list as "4,2" the first counts).
int default_threads();

// The quota alone, in whole cores, or -1 where there is none. Reads
// `root`/proc/self/cgroup and `root`/sys/fs/cgroup; tests give another root.
int quota_cores(const std::filesystem::path& root);

}  // namespace sparring::execution
