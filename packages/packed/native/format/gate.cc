#include "format/gate.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "format/json.h"
#include "sparring/storage_border.h"

namespace sparring::packed {
namespace {

using border::StatusError;

constexpr uint64_t kMostBytes = 64u << 10;
constexpr size_t kMostNameBytes = 255;

[[noreturn]] void refuse(const Folder& folder, const std::string& what) {
  throw StatusError(SPARRING_CORRUPT, folder.path() + "/" + kGateName + ": " + what +
                                          "; write it again with sparring publish --pin or --unpin");
}

bool is_of_name(char each) {
  return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9') ||
         each == '_' || each == '.' || each == '-';
}

std::string text_or_null(const Json& json, const char* name) {
  const Json& value = json.at(name);
  return value.is_null() ? std::string() : value.text(name);
}

}  // namespace

Gate read_gate(const Folder& folder) {
  Gate gate;
  struct stat found;
  const bool is_present = ::fstatat(folder.descriptor(), kGateName, &found, AT_SYMLINK_NOFOLLOW) == 0;
  if (!is_present && errno == ENOENT) return gate;
  const std::string text = folder.read(kGateName, kMostBytes);
  try {
    const Json json = Json::parse(text);
    json.at("format").whole("format", 1, 1);
    const std::string& state = json.at("state").text("state");
    if (state != "open" && state != "closed") {
      throw StatusError(SPARRING_CORRUPT, "its state is neither open nor closed");
    }
    gate.is_closed = state == "closed";
    gate.since = json.at("since").number("since");
    gate.reason = text_or_null(json, "reason");
    gate.pin = text_or_null(json, "pin");
    gate.pinned_by = text_or_null(json, "pinned_by");
  } catch (const StatusError& error) {
    refuse(folder, error.what());
  }
  const bool is_name = gate.pin.size() <= kMostNameBytes && gate.pin[0] != '.' && gate.pin[0] != '-' &&
                       std::all_of(gate.pin.begin(), gate.pin.end(), is_of_name);
  if (!is_name) refuse(folder, "its pin is not the name of a serving snapshot");
  const bool has_origin = gate.pinned_by == "gate" || gate.pinned_by == "operator";
  if (gate.pin.empty() ? !gate.pinned_by.empty() : !has_origin) {
    refuse(folder, "its pinned_by must be gate or operator with a pin, and null without");
  }
  gate.exists = true;
  return gate;
}

}  // namespace sparring::packed
