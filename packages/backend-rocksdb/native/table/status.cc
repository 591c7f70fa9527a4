#include "status.h"

namespace sparring::flash {
namespace {

bool says(const rocksdb::Status& status, const char* words) {
  return status.ToString().find(words) != std::string::npos;
}

const char* remedy_of_io(const rocksdb::Status& status) {
  if (status.IsNoSpace() || says(status, "No space left")) {
    return "free disk space, then write again";
  }
  if (says(status, "lock file") || says(status, "lock hold by")) {
    return "another process has this folder open: end it, or use a separate folder for this process "
           "(for example with '{rank}' in the path)";
  }
  if (says(status, "Permission denied") || says(status, "Not a directory") ||
      says(status, "Read-only file system")) {
    return "set path to a folder that this process may write to";
  }
  return "check the disk, then try again";
}

}  // namespace

void check(const rocksdb::Status& status, const std::string& asked) {
  if (status.ok()) return;
  const std::string found = asked + ": " + status.ToString() + "; ";
  switch (status.code()) {
    case rocksdb::Status::kCorruption:
      throw StatusError(SPARRING_CORRUPT,
                        found + "the checksums of the files do not match: restore a checkpoint or "
                                "snapshot, or, if only the log is damaged, see the option 'recovery'");
    case rocksdb::Status::kIOError:
      throw StatusError(SPARRING_IO, found + remedy_of_io(status));
    case rocksdb::Status::kInvalidArgument:
      // RocksDB reports this for a missing or foreign file when it opens a folder.
      throw StatusError(SPARRING_INVALID_ARGUMENT, found + "set path to another folder, or change "
                                                           "the options");
    case rocksdb::Status::kNotSupported:
      throw StatusError(SPARRING_UNSUPPORTED,
                        found + "this build of RocksDB does not support it: choose another option");
    case rocksdb::Status::kTimedOut:
      throw StatusError(SPARRING_DEADLINE, found + "try again");
    case rocksdb::Status::kShutdownInProgress:
      throw StatusError(SPARRING_CLOSED, found + "open it again");
    default:
      if (status.IsMemoryLimit()) {
        throw StatusError(SPARRING_OUT_OF_MEMORY, found + "give the process more memory");
      }
      throw StatusError(SPARRING_IO, found + "see the file LOG in the folder");
  }
}

}  // namespace sparring::flash
