// Serving snapshots on disk as versions: the newest of a folder, and its chain of deltas.
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
  bool verifies_all;  // every byte of what is mapped now, before it is used
};

// The version at `path`, a serving snapshot or a folder of them. Layers that `known`
// versions have mapped are shared; their bases need not be there any more. Where it is one
// of `known`, that one is returned.
// Throws StatusError: SPARRING_IO, SPARRING_CORRUPT, SPARRING_INVALID_ARGUMENT.
std::shared_ptr<const Version> load_version(const std::string& path, const LoadOptions& options,
                                            const Versions& known);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_CHAIN_H_
