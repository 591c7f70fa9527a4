// The C functions of libsparring_packed.so, which is opened at run time: the library belongs to another
// Python package, whose place is only known then.
#ifndef SPARRING_SERVE_TABLES_PACKED_LIBRARY_H_
#define SPARRING_SERVE_TABLES_PACKED_LIBRARY_H_

#include <memory>
#include <stdexcept>
#include <string>

#include "sparring_packed.h"

namespace sparring::serve {

struct PackedError : std::runtime_error {
  PackedError(SparringStatus code, const std::string& message)
      : std::runtime_error(message), status(code) {}

  SparringStatus status;
};

class PackedLibrary {
 public:
  // Throws std::runtime_error if the library cannot be opened.
  explicit PackedLibrary(const std::string& path);

  struct Open {
    std::string path;
    bool verifies_all;
    int keep_versions;
    int partition_begin;
    int partition_end;
  };
  using Handle = std::shared_ptr<SparringPacked>;

  // All functions throw PackedError.
  Handle open(const Open& options) const;
  bool refresh(SparringPacked* packed, bool verifies_all) const;
  SparringPackedGate gate(const std::string& folder) const;
  SparringPackedVersion version(SparringPacked* packed, int back) const;
  SparringPackedTable table(SparringPacked* packed, int number) const;
  void lookup(SparringPacked* packed, SparringPackedLookup& arguments) const;
  void scan(SparringPacked* packed, SparringPackedScan& arguments) const;
  void select(SparringPackedSelect& arguments) const;
  void model(SparringPacked* packed, SparringPackedModel& arguments) const;

 private:
  decltype(&sparring_packed_open) open_;
  decltype(&sparring_packed_close) close_;
  decltype(&sparring_packed_refresh) refresh_;
  decltype(&sparring_packed_gate) gate_;
  decltype(&sparring_packed_version) version_;
  decltype(&sparring_packed_table) table_;
  decltype(&sparring_packed_lookup) lookup_;
  decltype(&sparring_packed_scan) scan_;
  decltype(&sparring_packed_select) select_;
  decltype(&sparring_packed_model) model_;
};

// Returns zeroed arguments of a call with their size and the CPU.
template <class Arguments>
Arguments arguments_of() {
  Arguments made{};
  made.call.struct_bytes = sizeof made;
  made.call.device = {1, 0};
  return made;
}

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_TABLES_PACKED_LIBRARY_H_
