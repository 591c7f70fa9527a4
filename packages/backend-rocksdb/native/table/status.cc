#include "status.h"

namespace sparring::flash {
namespace {

bool says(const rocksdb::Status& status, const char* words) {
  return status.ToString().find(words) != std::string::npos;
}

const char* remedy_of_io(const rocksdb::Status& status) {
  if (status.IsNoSpace() || says(status, "No space left")) {
    return "make room on the disk, then write again";
  }
  if (says(status, "lock file") || says(status, "lock hold by")) {
    return "another process has this folder open: end it, or name a folder of this process's own "
           "('{rank}' in the path gives each rank one)";
  }
  if (says(status, "Permission denied") || says(status, "Not a directory") ||
      says(status, "Read-only file system")) {
    return "name a folder that this process may write to";
  }
  return "look at the disk, then try again";
}

}  // namespace

void check(const rocksdb::Status& status, const std::string& asked) {
  if (status.ok()) return;
  const std::string found = asked + ": " + status.ToString() + "; ";
  switch (status.code()) {
    case rocksdb::Status::kCorruption:
      throw StatusError(SPARRING_CORRUPT,
                        found + "the files fail their own checks: restore a checkpoint or snapshot, "
                                "or see the option 'recovery' where it is the log that is damaged");
    case rocksdb::Status::kIOError:
      throw StatusError(SPARRING_IO, found + remedy_of_io(status));
    case rocksdb::Status::kInvalidArgument:
      // RocksDB reports this for a missing or foreign file when it opens a folder.
      throw StatusError(SPARRING_INVALID_ARGUMENT, found + "name another folder or other options");
    case rocksdb::Status::kNotSupported:
      throw StatusError(SPARRING_UNSUPPORTED,
                        found + "this build of RocksDB cannot do it: choose another option");
    case rocksdb::Status::kTimedOut:
      throw StatusError(SPARRING_DEADLINE, found + "try again");
    case rocksdb::Status::kShutdownInProgress:
      throw StatusError(SPARRING_CLOSED, found + "open it again");
    default:
      if (status.IsMemoryLimit()) {
        throw StatusError(SPARRING_OUT_OF_MEMORY, found + "give it more memory");
      }
      throw StatusError(SPARRING_IO, found + "look at the file LOG in the folder");
  }
}

}  // namespace sparring::flash
