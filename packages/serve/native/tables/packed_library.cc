#include "tables/packed_library.h"

#include <dlfcn.h>

namespace sparring::serve {

namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    throw std::runtime_error("the library of sparring-packed has no function " + std::string(name) +
                             "; upgrade sparring-packed");
  }
  function = reinterpret_cast<Function>(found);
}

void check(SparringStatus status, SparringCall& call) {
  if (status == SPARRING_OK) return;
  const std::string message =
      call.error.message == nullptr ? "no reason was given" : call.error.message;
  if (call.error.release != nullptr) call.error.release(&call.error);
  throw PackedError(status, message);
}

}  // namespace

PackedLibrary::PackedLibrary(const std::string& path) {
  // Never closed: it is used until the process ends.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error("the library of sparring-packed cannot be loaded: " +
                             std::string(dlerror()) +
                             "; install it again: pip install --force-reinstall sparring-packed");
  }
  find(library, "sparring_packed_open", open_);
  find(library, "sparring_packed_close", close_);
  find(library, "sparring_packed_refresh", refresh_);
  find(library, "sparring_packed_gate", gate_);
  find(library, "sparring_packed_version", version_);
  find(library, "sparring_packed_table", table_);
  find(library, "sparring_packed_lookup", lookup_);
  find(library, "sparring_packed_scan", scan_);
  find(library, "sparring_packed_select", select_);
  find(library, "sparring_packed_model", model_);
}

PackedLibrary::Handle PackedLibrary::open(const Open& options) const {
  auto arguments = arguments_of<SparringPackedOpen>();
  arguments.path = options.path.c_str();
  arguments.verify = options.verifies_all ? SPARRING_PACKED_VERIFY_ALL : SPARRING_PACKED_VERIFY_OPEN;
  arguments.keep_versions = options.keep_versions;
  arguments.partition_begin = options.partition_begin;
  arguments.partition_end = options.partition_end;
  check(open_(&arguments), arguments.call);
  return Handle(arguments.packed, close_);
}

bool PackedLibrary::refresh(SparringPacked* packed, bool verifies_all) const {
  auto arguments = arguments_of<SparringPackedRefresh>();
  arguments.verify = verifies_all ? SPARRING_PACKED_VERIFY_ALL : SPARRING_PACKED_VERIFY_OPEN;
  check(refresh_(packed, &arguments), arguments.call);
  return arguments.is_changed != 0;
}

SparringPackedGate PackedLibrary::gate(const std::string& folder) const {
  auto arguments = arguments_of<SparringPackedGate>();
  arguments.path = folder.c_str();
  check(gate_(&arguments), arguments.call);
  return arguments;
}

SparringPackedVersion PackedLibrary::version(SparringPacked* packed, int back) const {
  auto arguments = arguments_of<SparringPackedVersion>();
  arguments.back = back;
  check(version_(packed, &arguments), arguments.call);
  return arguments;
}

SparringPackedTable PackedLibrary::table(SparringPacked* packed, int number) const {
  auto arguments = arguments_of<SparringPackedTable>();
  arguments.table = number;
  check(table_(packed, &arguments), arguments.call);
  return arguments;
}

void PackedLibrary::lookup(SparringPacked* packed, SparringPackedLookup& arguments) const {
  check(lookup_(packed, &arguments), arguments.call);
}

void PackedLibrary::scan(SparringPacked* packed, SparringPackedScan& arguments) const {
  check(scan_(packed, &arguments), arguments.call);
}

void PackedLibrary::model(SparringPacked* packed, SparringPackedModel& arguments) const {
  check(model_(packed, &arguments), arguments.call);
}

void PackedLibrary::select(SparringPackedSelect& arguments) const {
  check(select_(&arguments), arguments.call);
}

}  // namespace sparring::serve
