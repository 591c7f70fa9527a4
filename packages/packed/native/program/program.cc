// Serving snapshots that are bound to programs of this process.
//
//   handle ──► Program ──► Version (current)     tables, mapped once, and parameters
//   number ──────────────► Version (held by runs until they end)
//
// A refresh opens the next version completely, and then replaces the current one. A version is closed
// when it is not the current one and no run holds it.
#include "sparring_program.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/bundle.h"
#include "program/parameters.h"

namespace sparring::program {
namespace {

struct Table {
  int32_t number;
  int32_t dim;
};

using Read = SparringStatus (*)(SparringPacked*, SparringPackedLookup*);

thread_local std::string last_error;

template <class Function>
int32_t guarded(Function&& function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

template <class Arguments>
Arguments new_arguments() {
  Arguments arguments{};
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device.type = 1;  // the CPU
  return arguments;
}

template <class Arguments>
void check(SparringStatus status, Arguments& arguments) {
  if (status == SPARRING_OK) return;
  const char* found = arguments.call.error.message;
  const std::string message = found == nullptr ? "a call of sparring-packed failed" : found;
  if (arguments.call.error.release != nullptr) arguments.call.error.release(&arguments.call.error);
  throw std::runtime_error(message);
}

struct ClosePacked {
  void operator()(SparringPacked* packed) const { sparring_packed_close(packed); }
};
using Packed = std::unique_ptr<SparringPacked, ClosePacked>;

Packed opened(const std::string& served) {
  auto open = new_arguments<SparringPackedOpen>();
  open.path = served.c_str();
  open.keep_versions = 1;
  check(sparring_packed_open(&open), open);
  return Packed(open.packed);
}

// One version of the tables and the parameters of a program. Any thread may read it.
class Version {
 public:
  // Of the newest version of `packed`.
  explicit Version(SparringPacked* packed);

  const std::string& hash() const { return hash_; }
  int64_t step() const { return step_; }
  const std::unordered_map<std::string, Table>& tables() const { return tables_; }

  // Throws std::runtime_error if there is no such table, or it has another dim.
  Table table(const std::string& name, int64_t dim) const;

  // See sparring_packed.h; throws std::runtime_error.
  void read(Read function, int64_t num_requests, const SparringPackedRequest* requests) const;

  // Content of the file of the model of this kind; no value if the version contains only rows.
  std::optional<std::string> model_file(const std::string& kind) const;

  // As text for messages.
  std::string described() const { return "version " + hash_ + " of step " + std::to_string(step_); }

  int64_t number = 0;             // in the registry
  std::atomic<int64_t> holds{0};  // number of runs that have not ended
  bool is_current = false;        // protected by the mutex of the registry

  // Set before the version becomes the current one. Without parameters if the program reads none.
  std::shared_ptr<const std::vector<ParameterSpec>> specs;
  std::shared_ptr<Parameters> parameters;
  bool has_own_parameters = false;  // otherwise they are those of the bundle

 private:
  Packed packed_;
  std::string hash_;
  int64_t step_ = 0;
  std::unordered_map<std::string, Table> tables_;
};

Version::Version(SparringPacked* packed) {
  auto pin = new_arguments<SparringPackedPin>();
  check(sparring_packed_pin(packed, &pin), pin);
  packed_.reset(pin.pinned);
  auto version = new_arguments<SparringPackedVersion>();
  check(sparring_packed_version(packed_.get(), &version), version);
  hash_ = version.hash;
  step_ = version.step;
  auto table = new_arguments<SparringPackedTable>();
  for (; table.table < version.num_tables; ++table.table) {
    check(sparring_packed_table(packed_.get(), &table), table);
    tables_[table.name] = Table{table.table, table.dim};
  }
}

Table Version::table(const std::string& name, int64_t dim) const {
  const auto found = tables_.find(name);
  if (found == tables_.end()) {
    throw std::runtime_error("the serving snapshot has no table '" + name +
                             "', which the program reads; bind a serving snapshot of the same model");
  }
  if (found->second.dim != dim) {
    throw std::runtime_error("table '" + name + "' has dim " + std::to_string(found->second.dim) +
                             " in the serving snapshot, and the program needs " +
                             std::to_string(dim) + "; bind a serving snapshot of the same model");
  }
  return found->second;
}

void Version::read(Read function, int64_t num_requests,
                   const SparringPackedRequest* requests) const {
  auto arguments = new_arguments<SparringPackedLookup>();
  arguments.num_requests = num_requests;
  arguments.requests = requests;
  check(function(packed_.get(), &arguments), arguments);
}

std::optional<std::string> Version::model_file(const std::string& kind) const {
  auto file = new_arguments<SparringPackedModel>();
  do {
    check(sparring_packed_model(packed_.get(), &file), file);
    if (file.num_files > 0 && file.kind == kind) {
      std::string content(file.size_bytes, '\0');
      file.bytes = reinterpret_cast<uint8_t*>(content.data());
      file.capacity = content.size();
      check(sparring_packed_model(packed_.get(), &file), file);
      return content;
    }
  } while (++file.file < file.num_files);
  return std::nullopt;
}

// A bound program. Its version is replaced by refreshes, one at a time.
class Program {
 public:
  Program(const std::string& bundle, const std::string& served)
      : bundle_(bundle), binding_(binding_of(bundle)), packed_(opened(served)) {
    if (auto specs = parameters_of(bundle)) {
      specs_ = std::make_shared<const std::vector<ParameterSpec>>(std::move(*specs));
    }
    current = next_version(nullptr);
  }

  const Binding& binding() const { return binding_; }

  // Opens the newest version; null if it is the current one. REQUIRES: refreshing is locked.
  std::shared_ptr<Version> newer_version() {
    auto arguments = new_arguments<SparringPackedRefresh>();
    check(sparring_packed_refresh(packed_.get(), &arguments), arguments);
    // Compared by hash: a version whose parameters were rejected is rejected again.
    auto version = next_version(current.get());
    return version->hash() == current->hash() ? nullptr : version;
  }

  std::mutex refreshing;
  std::shared_ptr<Version> current;  // protected by the mutex of the registry, replaced in a refresh

 private:
  std::shared_ptr<Version> next_version(const Version* previous) const {
    auto version = std::make_shared<Version>(packed_.get());
    if (previous != nullptr && previous->hash() == version->hash()) return version;
    for (const auto& [name, dim] : binding_.dims) version->table(name, dim);
    if (specs_ == nullptr) return version;
    version->specs = specs_;
    const auto file = version->model_file("parameters");
    version->has_own_parameters = file.has_value();
    if (file.has_value()) {
      version->parameters = std::make_shared<Parameters>(*specs_, *file, version->described());
    } else if (previous == nullptr) {
      version->parameters = std::make_shared<Parameters>(*specs_, exported_parameters(bundle_), bundle_);
    } else if (!previous->has_own_parameters) {
      version->parameters = previous->parameters;
    } else {
      throw std::runtime_error(version->described() +
                               " has no parameters of the model, but the current " +
                               previous->described() +
                               " has; publish versions with their parameters, or bind the program again");
    }
    return version;
  }

  const std::string bundle_;
  const Binding binding_;
  const Packed packed_;
  std::shared_ptr<const std::vector<ParameterSpec>> specs_;  // null: the program contains them
};

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Program>> programs;      // by handle
  std::unordered_map<int64_t, std::shared_ptr<Version>> versions;          // by number
  int64_t num_versions = 0;                                                // ever added
};

Registry& registry() {
  static auto* found = new Registry;  // never destroyed, because threads may look up until exit
  return *found;
}

const std::shared_ptr<Program>& bound(const Registry& all, const std::string& handle) {
  const auto found = all.programs.find(handle);
  if (found == all.programs.end()) {
    throw std::runtime_error("the program " + handle +
                             " has no tables: call sparring_program_bind(bundle, served) first");
  }
  return found->second;
}

std::shared_ptr<Program> find_program(const std::string& handle) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  return bound(all, handle);
}

std::shared_ptr<Version> current_version(const std::string& handle) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  return bound(all, handle)->current;
}

std::shared_ptr<Version> held_version(int64_t number) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto found = all.versions.find(number);
  if (found == all.versions.end()) {
    throw std::runtime_error("no run holds version number " + std::to_string(number) +
                             ": call sparring_program_begin before the run and sparring_program_end "
                             "after it");
  }
  return found->second;
}

// The functions below require that the mutex is locked exclusively. They return the version that is no
// longer used, so that it is closed after the mutex is unlocked.
void add(Registry& all, const std::shared_ptr<Version>& version) {
  version->number = ++all.num_versions;
  version->is_current = true;
  all.versions[version->number] = version;
}

std::shared_ptr<Version> retire(Registry& all, const std::shared_ptr<Version>& version) {
  version->is_current = false;
  if (version->holds == 0) all.versions.erase(version->number);
  return version;
}

int64_t begin(const std::string& handle) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  Version& version = *bound(all, handle)->current;
  ++version.holds;
  return version.number;
}

void end(int64_t number) {
  const std::shared_ptr<Version> version = held_version(number);
  if (--version->holds > 0) return;
  Registry& all = registry();
  {
    const std::shared_lock lock(all.mutex);
    if (version->is_current) return;
  }
  const std::unique_lock lock(all.mutex);
  if (!version->is_current && version->holds == 0) all.versions.erase(number);
}

void read(Read function, const Version& version, int64_t num_requests, const char* const* names,
          const int64_t* dims, SparringPackedRequest* requests, uint64_t request_bytes) {
  if (request_bytes != sizeof(SparringPackedRequest)) {
    throw std::runtime_error(
        "the operators of the program and libsparring_packed.so are of different releases; export "
        "the program again");
  }
  for (int64_t i = 0; i < num_requests; ++i) {
    requests[i].table = version.table(names[i], dims[i]).number;
  }
  version.read(function, num_requests, requests);
}

const ParameterSpec& spec_at(const Version& version, int64_t place) {
  const size_t count = version.specs == nullptr ? 0 : version.specs->size();
  if (place < 0 || static_cast<size_t>(place) >= count) {
    throw std::runtime_error("the program has " + std::to_string(count) +
                             " parameters, but number " + std::to_string(place) +
                             " was requested; export the program again");
  }
  return (*version.specs)[static_cast<size_t>(place)];
}

}  // namespace
}  // namespace sparring::program

using namespace sparring::program;

int32_t sparring_program_bind(const char* bundle, const char* served) {
  return guarded([&] {
    check_files(bundle);
    const auto program = std::make_shared<Program>(bundle, served);
    const Binding& binding = program->binding();
    const std::string& found = program->current->hash();
    if (binding.is_exact() && found != binding.hash()) {
      throw std::runtime_error(
          std::string("the program of ") + bundle + " is bound to version " + binding.hash() +
          " of its tables, but the newest version in " + served + " is " + found +
          "; pass the folder of that version, or export the program again (follow=True lets a "
          "program read later versions)");
    }
    Registry& all = registry();
    std::shared_ptr<Program> previous;  // closed after the lock is released
    const std::unique_lock lock(all.mutex);
    std::shared_ptr<Program>& place = all.programs[binding.handle];
    if (place != nullptr) retire(all, place->current);
    previous = std::exchange(place, program);
    add(all, program->current);
  });
}

int32_t sparring_program_refresh(const char* bundle, int32_t* is_changed) {
  return guarded([&] {
    *is_changed = 0;
    const Binding binding = binding_of(bundle);
    if (binding.is_exact()) {
      throw std::runtime_error(std::string("the program of ") + bundle + " is bound to version " +
                               binding.hash() +
                               " only; export it with follow=True if it may read later versions");
    }
    const auto program = find_program(binding.handle);
    const std::lock_guard refreshing(program->refreshing);
    auto version = program->newer_version();
    if (version == nullptr) return;
    Registry& all = registry();
    std::shared_ptr<Version> previous;  // closed after the lock is released
    const std::unique_lock lock(all.mutex);
    if (bound(all, binding.handle) != program) return;  // bound again meanwhile
    add(all, version);
    previous = retire(all, std::exchange(program->current, std::move(version)));
    *is_changed = 1;
  });
}

int32_t sparring_program_version(const char* bundle, char hash[33], int64_t* step) {
  return guarded([&] {
    const auto found = current_version(binding_of(bundle).handle);
    std::memset(hash, 0, 33);
    std::memcpy(hash, found->hash().data(), std::min<size_t>(32, found->hash().size()));
    *step = found->step();
  });
}

int32_t sparring_program_release(const char* bundle) {
  return guarded([&] {
    const std::string handle = binding_of(bundle).handle;
    Registry& all = registry();
    std::shared_ptr<Program> closed;  // after the lock is released
    const std::unique_lock lock(all.mutex);
    closed = bound(all, handle);
    retire(all, closed->current);
    all.programs.erase(handle);
  });
}

int32_t sparring_program_describe(const char* served, char* text, uint64_t room) {
  return guarded([&] {
    const Version version(opened(served).get());
    std::ostringstream made;
    made << version.hash() << '\n';
    for (const auto& [name, table] : version.tables()) made << table.dim << ' ' << name << '\n';
    const std::string found = made.str();
    if (found.size() >= room) throw std::runtime_error("the description is too long");
    std::memcpy(text, found.c_str(), found.size() + 1);
  });
}

int32_t sparring_program_lookup(const char* handle, int64_t num_requests, const char* const* tables,
                                const int64_t* dims, SparringPackedRequest* requests,
                                uint64_t request_bytes) {
  return guarded([&] {
    read(&sparring_packed_lookup, *current_version(handle), num_requests, tables, dims, requests,
         request_bytes);
  });
}

int32_t sparring_program_pool(const char* handle, int64_t num_requests, const char* const* tables,
                              const int64_t* dims, SparringPackedRequest* requests,
                              uint64_t request_bytes) {
  return guarded([&] {
    read(&sparring_packed_pool, *current_version(handle), num_requests, tables, dims, requests,
         request_bytes);
  });
}

int32_t sparring_program_begin(const char* handle, int64_t* version) {
  return guarded([&] { *version = begin(handle); });
}

int32_t sparring_program_end(int64_t version) {
  return guarded([&] { end(version); });
}

int32_t sparring_program_lookup_in(int64_t version, int64_t num_requests,
                                   const char* const* tables, const int64_t* dims,
                                   SparringPackedRequest* requests, uint64_t request_bytes) {
  return guarded([&] {
    read(&sparring_packed_lookup, *held_version(version), num_requests, tables, dims, requests,
         request_bytes);
  });
}

int32_t sparring_program_pool_in(int64_t version, int64_t num_requests, const char* const* tables,
                                 const int64_t* dims, SparringPackedRequest* requests,
                                 uint64_t request_bytes) {
  return guarded([&] {
    read(&sparring_packed_pool, *held_version(version), num_requests, tables, dims, requests,
         request_bytes);
  });
}

int32_t sparring_program_num_parameters(int64_t version, int64_t* count) {
  return guarded([&] {
    const auto held = held_version(version);
    *count = held->specs == nullptr ? 0 : static_cast<int64_t>(held->specs->size());
  });
}

int32_t sparring_program_parameter(int64_t version, int64_t place,
                                   SparringProgramParameter* parameter, uint64_t parameter_bytes) {
  return guarded([&] {
    if (parameter_bytes != sizeof(SparringProgramParameter)) {
      throw std::runtime_error(
          "the program and libsparring_packed.so are of different releases; export the program again");
    }
    const auto held = held_version(version);
    const ParameterSpec& spec = spec_at(*held, place);
    const Parameters::Value& value = held->parameters->values()[static_cast<size_t>(place)];
    parameter->name = spec.name.c_str();
    parameter->dtype = spec.dtype.c_str();
    parameter->num_dims = static_cast<int32_t>(spec.shape.size());
    parameter->sizes = spec.shape.data();
    parameter->data = value.data.get();
    parameter->num_bytes = value.num_bytes;
  });
}

int32_t sparring_program_keep(int64_t version, int64_t place, void** object,
                              void (*destroy)(void*)) {
  return guarded([&] {
    const auto held = held_version(version);
    spec_at(*held, place);
    *object = held->parameters->keep(static_cast<size_t>(place), *object, destroy);
  });
}

const char* sparring_program_error() { return last_error.c_str(); }
