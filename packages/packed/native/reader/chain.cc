#include "reader/chain.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "format/gate.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::StatusError;

std::string real_path(const std::string& path) {
  char* const found = ::realpath(path.c_str(), nullptr);
  if (found == nullptr) {
    throw StatusError(SPARRING_IO, "there is no serving snapshot " + path + ": " +
                                       std::strerror(errno) +
                                       "; write one with sparring_packed.write or sparring publish");
  }
  const std::string result = found;
  std::free(found);
  return result;
}

struct Found {
  std::string path;
  Manifest manifest;
};

bool has_manifest(const std::string& path) {
  try {
    Folder(path).read(kManifestName, kMostManifestBytes);
    return true;
  } catch (const StatusError& error) {
    if (error.status() == SPARRING_IO) return false;
    throw;
  }
}

bool has_entry(const std::string& folder, const std::string& name) {
  const std::vector<std::string> names = Folder(folder).committed();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the name that gate.json pins; empty if it pins none or is damaged, which servers report. If it
// cannot be read, a version that it withholds must not be used.
std::string pin_of(const std::string& folder) {
  try {
    return read_gate(Folder(folder)).pin;
  } catch (const StatusError& error) {
    if (error.status() != SPARRING_CORRUPT) throw;
    return {};
  }
}

Found pinned(const std::string& folder, const std::string& name) {
  Found found{folder + "/" + name, {}};
  try {
    found.manifest = read_manifest(found.path);
  } catch (const StatusError& error) {
    throw StatusError(error.status(), folder + "/" + kGateName + " pins " + name +
                                          ", which cannot be used: " + error.what() +
                                          "; pin another one, or remove the pin: sparring publish --unpin");
  }
  return found;
}

// Returns the serving snapshot at `path`; or in that folder the pinned one, or the last one by generation,
// step and name. The step of a snapshot with an unreadable manifest is unknown: it counts as newer if its
// name is greater, and fails.
Found newest(const std::string& path) {
  const std::string real = real_path(path);
  if (has_manifest(real)) return {real, read_manifest(real)};
  if (const std::string pin = pin_of(real); !pin.empty()) return pinned(real, pin);
  Found best;
  std::string damaged;
  std::string damage;
  for (const std::string& name : Folder(real).committed()) {
    Found found{real + "/" + name, {}};
    try {
      found.manifest = read_manifest(found.path);
    } catch (const StatusError& error) {
      // It may have been removed since the folder was listed.
      if (error.status() == SPARRING_CORRUPT || has_entry(real, name)) {
        damaged = found.path;
        damage = error.what();
      }
      continue;
    }
    if (best.path.empty() || found.manifest.is_newer_than(best.manifest)) best = std::move(found);
  }
  if (damaged > best.path) throw StatusError(SPARRING_CORRUPT, damage);
  if (best.path.empty()) {
    throw StatusError(SPARRING_IO, "folder " + path + " has no serving snapshot; write one with "
                                                      "sparring_packed.write or sparring publish "
                                                      "(symbolic links to versions are not followed)");
  }
  return best;
}

Manifest base_of(const Found& delta, const std::string& folder) {
  const Manifest& manifest = delta.manifest;
  const std::string path = folder + "/" + manifest.base_name;
  Manifest base;
  try {
    base = read_manifest(path);
  } catch (const StatusError& error) {
    throw StatusError(error.status(), "serving snapshot " + delta.path + " is a delta over " +
                                          manifest.base_name + ", which cannot be used: " +
                                          error.what() + "; use a full one");
  }
  if (base.hash != manifest.base_hash) {
    throw StatusError(SPARRING_INVALID_ARGUMENT,
                      "serving snapshot " + delta.path + " is a delta over " + manifest.base_name +
                          " with the hash " + manifest.base_hash +
                          ", but that snapshot has the hash " + base.hash +
                          "; use a full one");
  }
  return base;
}

// Returns the layers of the version with this hash: of a known version, or of one that a known version is
// based on. Empty if there is none.
std::vector<std::shared_ptr<const Layer>> known_layers(const Versions& known, const std::string& hash) {
  for (const auto& version : known) {
    for (auto layer = version->layers.begin(); layer != version->layers.end(); ++layer) {
      if ((*layer)->manifest.hash == hash) return {layer, version->layers.end()};
    }
  }
  return {};
}

}  // namespace

std::shared_ptr<const Version> load_version(const std::string& path, const LoadOptions& options,
                                            const Versions& known) {
  Found found = newest(path);
  for (const auto& version : known) {
    if (version->manifest().hash == found.manifest.hash) return version;
  }
  const std::string folder = found.path.substr(0, found.path.find_last_of('/'));
  std::vector<std::shared_ptr<const Layer>> layers = known_layers(known, found.manifest.hash);
  while (layers.empty() || !layers.back()->manifest.base_hash.empty()) {
    const std::string base_hash = found.manifest.base_hash;
    const auto base = known_layers(known, base_hash);
    Found next;
    if (!base_hash.empty() && base.empty()) {
      next.path = folder + "/" + found.manifest.base_name;
      next.manifest = base_of(found, folder);
    }
    layers.push_back(map_layer(found.path, std::move(found.manifest), options.partitions));
    if (!known.empty()) layers.back()->read_ahead();  // its rows are requested immediately
    if (options.verifies_all) layers.back()->verify();
    layers.insert(layers.end(), base.begin(), base.end());
    if (layers.size() > kMostLayers) {
      border::refuse("serving snapshot " + path + " is a delta over more than " +
                     std::to_string(kMostLayers - 1) + " deltas; publish a full one");
    }
    found = std::move(next);
  }
  return make_version(std::move(layers), options.partitions);
}

}  // namespace sparring::packed
