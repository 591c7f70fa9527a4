#include "abi/storage_handle.h"

#include <cstddef>
#include <cstring>

#include "execution/pool.h"

namespace sparring::abi {
namespace {

template <typename Arguments>
void prepare(Arguments& arguments) {
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device = SparringDevice{1, 0};
  arguments.call.stream = nullptr;
  arguments.call.executor = execution::process_executor();
  arguments.call.error = SparringError{nullptr, nullptr, nullptr};
}

struct SinkContext {
  EvictedRows* evicted;
  uint64_t row_bytes;
};

// Called by a backend, so it must not throw.
int32_t receive(void* context, int64_t count, const int64_t* keys,
                const void* rows, const uint64_t* scores) {
  auto* sink = static_cast<SinkContext*>(context);
  try {
    EvictedRows& out = *sink->evicted;
    const auto n = static_cast<size_t>(count);
    const auto* bytes = static_cast<const std::byte*>(rows);
    out.keys.insert(out.keys.end(), keys, keys + n);
    out.rows.insert(out.rows.end(), bytes, bytes + n * sink->row_bytes);
    if (scores != nullptr) {
      out.scores.insert(out.scores.end(), scores, scores + n);
    } else {
      out.scores.resize(out.scores.size() + n, 0);
    }
    return 0;
  } catch (...) {
    return 1;
  }
}

std::string version_text(SparringVersion version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

}  // namespace

StorageHandle::StorageHandle(SparringStorage* storage) : storage_(storage) {
  if (storage == nullptr) {
    throw StorageError(SPARRING_INTERNAL, "the storage capsule is empty; open the storage again");
  }
  if (storage->version.major != SPARRING_STORAGE_ABI_MAJOR) {
    // Only version and release may be read, because another major version may have moved
    // all other members.
    throw VersionError(version_text(storage->version));
  }
  constexpr uint64_t kRequired = offsetof(SparringStorage, touch);
  if (storage->struct_bytes < kRequired || !storage->find || !storage->upsert ||
      !storage->erase || !storage->scan || !storage->stat || !storage->flush ||
      !storage->clear || !storage->release || !storage->distribution) {
    throw StorageError(SPARRING_INTERNAL,
                       "the storage has no callback for an operation that ABI version 1.0 "
                       "requires; report this to "
                       "the authors of the backend");
  }
  const SparringStat found = stat();
  row_bytes_ = found.row_bytes;
  keeps_handles_ = (found.capabilities & SPARRING_ROW_HANDLES) != 0 && offers_visit();
}

template <typename Callback>
Callback StorageHandle::optional(Callback SparringStorage::*member) const {
  const auto* at = reinterpret_cast<const char*>(&(storage_->*member));
  const auto end = at - reinterpret_cast<const char*>(storage_) + sizeof(Callback);
  return static_cast<uint64_t>(end) <= storage_->struct_bytes ? storage_->*member
                                                             : nullptr;
}

void StorageHandle::check(SparringStatus status, SparringCall& call,
                          const char* operation) const {
  if (status == SPARRING_OK) return;
  std::string message = call.error.message != nullptr
                            ? call.error.message
                            : std::string(operation) + " failed with status " +
                                  std::to_string(status) + " and no message";
  if (call.error.release != nullptr) call.error.release(&call.error);
  throw StorageError(status, message);
}

void StorageHandle::find(SparringFind& arguments) const {
  prepare(arguments);
  check(storage_->find(storage_->self, &arguments), arguments.call, "find");
}

void StorageHandle::upsert(SparringUpsert& arguments, EvictedRows* evicted) const {
  prepare(arguments);
  SinkContext context{evicted, row_bytes_};
  arguments.evicted = evicted != nullptr
                          ? SparringEvictionSink{&receive, &context}
                          : SparringEvictionSink{nullptr, nullptr};
  check(storage_->upsert(storage_->self, &arguments), arguments.call, "upsert");
}

int64_t StorageHandle::erase(int64_t count, const int64_t* keys) const {
  SparringErase arguments{};
  prepare(arguments);
  arguments.count = count;
  arguments.keys = keys;
  check(storage_->erase(storage_->self, &arguments), arguments.call, "erase");
  return arguments.erased;
}

bool StorageHandle::offers_touch() const {
  return optional(&SparringStorage::touch) != nullptr;
}

bool StorageHandle::offers_evict() const {
  return optional(&SparringStorage::evict) != nullptr;
}

void StorageHandle::touch(SparringTouch& arguments) const {
  auto callback = optional(&SparringStorage::touch);
  if (callback == nullptr) {
    throw StorageError(SPARRING_UNSUPPORTED, "touch: the storage does not support it; choose a "
                                             "backend or policy that does");
  }
  prepare(arguments);
  check(callback(storage_->self, &arguments), arguments.call, "touch");
}

int64_t StorageHandle::evict(int64_t wanted, EvictedRows* evicted) const {
  auto callback = optional(&SparringStorage::evict);
  if (callback == nullptr) {
    throw StorageError(SPARRING_UNSUPPORTED, "evict: the storage does not support it; choose a "
                                             "backend or policy that does");
  }
  SparringEvict arguments{};
  prepare(arguments);
  SinkContext context{evicted, row_bytes_};
  arguments.wanted = wanted;
  if (evicted != nullptr) arguments.sink = SparringEvictionSink{&receive, &context};
  check(callback(storage_->self, &arguments), arguments.call, "evict");
  return arguments.evicted;
}

void StorageHandle::scan(SparringScan& arguments) const {
  prepare(arguments);
  check(storage_->scan(storage_->self, &arguments), arguments.call, "scan");
}

bool StorageHandle::offers_visit() const {
  return optional(&SparringStorage::visit) != nullptr;
}

bool StorageHandle::offers_update() const {
  return optional(&SparringStorage::update) != nullptr;
}

void StorageHandle::visit(SparringVisit& arguments) const {
  auto callback = optional(&SparringStorage::visit);
  if (callback == nullptr) return visit_copies(arguments);
  prepare(arguments);
  check(callback(storage_->self, &arguments), arguments.call, "visit");
}

void StorageHandle::update(SparringUpdate& arguments, EvictedRows* evicted) const {
  auto callback = optional(&SparringStorage::update);
  if (callback == nullptr) return update_copies(arguments, evicted);
  prepare(arguments);
  SinkContext context{evicted, row_bytes_};
  arguments.evicted = evicted != nullptr
                          ? SparringEvictionSink{&receive, &context}
                          : SparringEvictionSink{nullptr, nullptr};
  check(callback(storage_->self, &arguments), arguments.call, "update");
}

SparringStat StorageHandle::stat() const {
  SparringStat arguments{};
  prepare(arguments);
  check(storage_->stat(storage_->self, &arguments), arguments.call, "stat");
  return arguments;
}

void StorageHandle::flush() const {
  SparringPlain arguments{};
  prepare(arguments);
  check(storage_->flush(storage_->self, &arguments), arguments.call, "flush");
}

void StorageHandle::clear() const {
  SparringPlain arguments{};
  prepare(arguments);
  check(storage_->clear(storage_->self, &arguments), arguments.call, "clear");
}

void StorageHandle::set_option(const std::string& name,
                               const std::string& value) const {
  auto callback = optional(&SparringStorage::set_option);
  if (callback == nullptr) {
    throw StorageError(SPARRING_UNSUPPORTED, "set_option: the storage has no options that can be "
                                             "set while it is open");
  }
  SparringSetOption arguments{};
  prepare(arguments);
  arguments.name = name.c_str();
  arguments.value = value.c_str();
  check(callback(storage_->self, &arguments), arguments.call, "set_option");
}

}  // namespace sparring::abi
