// Loads versions from disk: the newest serving snapshot of a folder, and its chain of deltas.
#ifndef SPARRING_PACKED_READER_CHAIN_H_
#define SPARRING_PACKED_READER_CHAIN_H_

#include <memory>
#include <string>
#include <vector>

#include "reader/version.h"

namespace sparring::packed {

using Versions = std::vector<std::shared_ptr<const Version>>;  // newest first

struct LoadOptions {
  Partitions partitions;
  bool verifies_all;  // whether every byte of newly mapped files is hashed before use
};

// Loads the version at `path`, a serving snapshot or a folder of serving snapshots. Layers that `known`
// versions have mapped are shared, and their files may no longer exist. If the version is one of
// `known`, that object is returned.
// Throws StatusError: SPARRING_IO, SPARRING_CORRUPT, SPARRING_INVALID_ARGUMENT.
std::shared_ptr<const Version> load_version(const std::string& path, const LoadOptions& options,
                                            const Versions& known);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_CHAIN_H_
