// gate.json, the state of a gate in a folder of serving snapshots. docs/format/packed.md describes it.
#ifndef SPARRING_PACKED_FORMAT_GATE_H_
#define SPARRING_PACKED_FORMAT_GATE_H_

#include <string>

#include "format/mapped_file.h"

namespace sparring::packed {

inline constexpr char kGateName[] = "gate.json";

struct Gate {
  bool exists = false;
  bool is_closed = false;
  double since = 0;       // seconds since 1970
  std::string reason;     // empty: none
  std::string pin;        // name of the serving snapshot to serve; empty: the newest
  std::string pinned_by;  // gate or operator; empty without a pin
};

// Returns an open gate without a pin if there is no file.
// Throws StatusError(SPARRING_CORRUPT) if the file is damaged, or SPARRING_IO.
Gate read_gate(const Folder& folder);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_GATE_H_
