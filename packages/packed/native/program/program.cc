// Serving snapshots that are bound to programs of this process.
#include "sparring_program.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/bundle.h"

namespace sparring::program {
namespace {

struct Table {
  int32_t number;
  int32_t dim;
};

using Read = SparringStatus (*)(SparringPacked*, SparringPackedLookup*);

// Open serving snapshots of one program. Any thread may look up.
class Tables {
 public:
  explicit Tables(const std::string& served);
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  // Throws std::runtime_error if there is no such table, or it has another dim.
  Table table(const std::string& name, int64_t dim) const;

  // See sparring_packed.h; these throw std::runtime_error.
  void read(Read function, int64_t num_requests, const SparringPackedRequest* requests) const;
  bool refresh();

  struct Version {
    std::string hash;
    int64_t step;
  };
  Version version() const;
  const std::unordered_map<std::string, Table>& all() const { return tables_; }

 private:
  SparringPacked* packed_ = nullptr;
  std::unordered_map<std::string, Table> tables_;  // numbers and dims do not change until close
};

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

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Tables>> tables;
};

Registry& registry() {
  static auto* found = new Registry;  // never destroyed, because threads may look up until exit
  return *found;
}

std::shared_ptr<Tables> find(const std::string& handle) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto found = all.tables.find(handle);
  if (found == all.tables.end()) {
    throw std::runtime_error("the program " + handle +
                             " has no tables: call sparring_program_bind(bundle, served) first");
  }
  return found->second;
}

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

Tables::Tables(const std::string& served) {
  auto open = new_arguments<SparringPackedOpen>();
  open.path = served.c_str();
  check(sparring_packed_open(&open), open);
  packed_ = open.packed;
  try {
    auto version = new_arguments<SparringPackedVersion>();
    check(sparring_packed_version(packed_, &version), version);
    auto table = new_arguments<SparringPackedTable>();
    for (; table.table < version.num_tables; ++table.table) {
      check(sparring_packed_table(packed_, &table), table);
      tables_[table.name] = Table{table.table, table.dim};
    }
  } catch (...) {
    sparring_packed_close(packed_);
    throw;
  }
}

Tables::~Tables() { sparring_packed_close(packed_); }

Table Tables::table(const std::string& name, int64_t dim) const {
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

void Tables::read(Read function, int64_t num_requests,
                  const SparringPackedRequest* requests) const {
  auto arguments = new_arguments<SparringPackedLookup>();
  arguments.num_requests = num_requests;
  arguments.requests = requests;
  check(function(packed_, &arguments), arguments);
}

bool Tables::refresh() {
  auto arguments = new_arguments<SparringPackedRefresh>();
  check(sparring_packed_refresh(packed_, &arguments), arguments);
  return arguments.is_changed != 0;
}

Tables::Version Tables::version() const {
  auto arguments = new_arguments<SparringPackedVersion>();
  check(sparring_packed_version(packed_, &arguments), arguments);
  return Version{arguments.hash, arguments.step};
}

int32_t read(Read function, const char* handle, int64_t num_requests, const char* const* names,
             const int64_t* dims, SparringPackedRequest* requests, uint64_t request_bytes) {
  return guarded([&] {
    if (request_bytes != sizeof(SparringPackedRequest)) {
      throw std::runtime_error(
          "the operators of the program and libsparring_packed.so are of different releases; export "
          "the program again");
    }
    const auto tables = find(handle);
    for (int64_t i = 0; i < num_requests; ++i) {
      requests[i].table = tables->table(names[i], dims[i]).number;
    }
    tables->read(function, num_requests, requests);
  });
}

}  // namespace
}  // namespace sparring::program

using sparring::program::Binding;
using sparring::program::Tables;

int32_t sparring_program_bind(const char* bundle, const char* served) {
  return sparring::program::guarded([&] {
    sparring::program::check_files(bundle);
    const Binding binding = sparring::program::binding_of(bundle);
    auto tables = std::make_shared<Tables>(served);
    const std::string found = tables->version().hash;
    if (binding.is_exact() && found != binding.hash()) {
      throw std::runtime_error(
          std::string("the program of ") + bundle + " is bound to version " + binding.hash() +
          " of its tables, but the newest version in " + served + " is " + found +
          "; pass the folder of that version, or export the program again (follow=True lets a "
          "program read later versions)");
    }
    for (const auto& [name, dim] : binding.dims) tables->table(name, dim);
    auto& all = sparring::program::registry();
    const std::unique_lock lock(all.mutex);
    all.tables[binding.handle].swap(tables);  // the previous tables are closed after the lock is released
  });
}

int32_t sparring_program_refresh(const char* bundle, int32_t* is_changed) {
  return sparring::program::guarded([&] {
    *is_changed = 0;
    const Binding binding = sparring::program::binding_of(bundle);
    if (binding.is_exact()) {
      throw std::runtime_error(std::string("the program of ") + bundle + " is bound to version " +
                               binding.hash() +
                               " only; export it with follow=True if it may read later versions");
    }
    *is_changed = sparring::program::find(binding.handle)->refresh() ? 1 : 0;
  });
}

int32_t sparring_program_version(const char* bundle, char hash[33], int64_t* step) {
  return sparring::program::guarded([&] {
    const auto handle = sparring::program::binding_of(bundle).handle;
    const auto found = sparring::program::find(handle)->version();
    std::memset(hash, 0, 33);
    std::memcpy(hash, found.hash.data(), std::min<size_t>(32, found.hash.size()));
    *step = found.step;
  });
}

int32_t sparring_program_release(const char* bundle) {
  return sparring::program::guarded([&] {
    const std::string handle = sparring::program::binding_of(bundle).handle;
    std::shared_ptr<Tables> closed = sparring::program::find(handle);
    auto& all = sparring::program::registry();
    const std::unique_lock lock(all.mutex);
    all.tables.erase(handle);
  });
}

int32_t sparring_program_describe(const char* served, char* text, uint64_t room) {
  return sparring::program::guarded([&] {
    const Tables tables(served);
    std::ostringstream made;
    made << tables.version().hash << '\n';
    for (const auto& [name, table] : tables.all()) made << table.dim << ' ' << name << '\n';
    const std::string found = made.str();
    if (found.size() >= room) throw std::runtime_error("the description is too long");
    std::memcpy(text, found.c_str(), found.size() + 1);
  });
}

int32_t sparring_program_lookup(const char* handle, int64_t num_requests, const char* const* tables,
                                const int64_t* dims, SparringPackedRequest* requests,
                                uint64_t request_bytes) {
  return sparring::program::read(&sparring_packed_lookup, handle, num_requests, tables, dims,
                                 requests, request_bytes);
}

int32_t sparring_program_pool(const char* handle, int64_t num_requests, const char* const* tables,
                              const int64_t* dims, SparringPackedRequest* requests,
                              uint64_t request_bytes) {
  return sparring::program::read(&sparring_packed_pool, handle, num_requests, tables, dims,
                                 requests, request_bytes);
}

const char* sparring_program_error() { return sparring::program::last_error.c_str(); }
