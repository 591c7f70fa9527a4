#include "storage.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "status.h"

namespace sparring::flash {
namespace {

constexpr int32_t kCpu = 1;  // DLPack's code

struct Owner {
  SparringStorage storage;
  std::string distribution;
  std::shared_ptr<Table> table;
};

void set_error(SparringCall& call, const char* message) {
  char* copy = static_cast<char*>(std::malloc(std::strlen(message) + 1));
  if (copy == nullptr) {
    call.error = {"out of memory", nullptr, nullptr};
    return;
  }
  std::strcpy(copy, message);
  call.error = {copy,
                [](SparringError* error) {
                  std::free(error->owner);
                  *error = {};
                },
                copy};
}

[[noreturn]] void refuse(const std::string& message) {
  throw StatusError(SPARRING_INVALID_ARGUMENT, message);
}

void check(bool is_right, const char* asked, uint64_t found) {
  if (!is_right) refuse(std::string(asked) + "; found " + std::to_string(found));
}

void check_count(int64_t count) {
  if (count < 0) refuse("count must not be negative; found " + std::to_string(count));
}

void check_pointer(const void* pointer, int64_t count, const char* name) {
  if (pointer == nullptr && count > 0) {
    refuse(std::string(name) + " must not be NULL for " + std::to_string(count) + " keys");
  }
}

void check_callback(bool is_given, const char* name) {
  if (!is_given) refuse(std::string(name) + " must not be NULL");
}

void check_columns(const SparringColumns& columns, uint64_t row_bytes) {
  if (columns.begin >= columns.end || columns.end > row_bytes) {
    refuse("columns must be a non-empty range of bytes within [0, " + std::to_string(row_bytes) +
           "); found [" + std::to_string(columns.begin) + ", " + std::to_string(columns.end) +
           ")");
  }
}

// Runs one callback behind the border.
template <class Arguments, class Body>
SparringStatus run(void* self, Arguments* arguments, const Body& body) {
  SparringCall& call = arguments->call;
  call.error = {};
  try {
    check(call.struct_bytes >= sizeof(Arguments), "struct_bytes must cover the arguments of 1.0",
          call.struct_bytes);
    if (call.device.type != kCpu) {
      throw StatusError(SPARRING_UNSUPPORTED,
                        "device must be the CPU (type 1); found type " +
                            std::to_string(call.device.type) + "; copy the arrays to the host");
    }
    Table& table = *static_cast<Table*>(self);
    const auto open = table.use();
    body(table);
    return SPARRING_OK;
  } catch (const StatusError& error) {
    set_error(call, error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    set_error(call, "the system has no more memory for this call");
    return SPARRING_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_error(call, error.what());
    return SPARRING_INTERNAL;
  } catch (...) {
    set_error(call, "an unknown exception");
    return SPARRING_INTERNAL;
  }
}

SparringStatus find(void* self, SparringFind* arguments) {
  return run(self, arguments, [=](Table& table) {
    check_count(arguments->count);
    check_columns(arguments->columns, table.row_bytes());
    check(arguments->row_stride >= arguments->columns.end - arguments->columns.begin,
          "row_stride must be at least the bytes of the columns", arguments->row_stride);
    check_pointer(arguments->keys, arguments->count, "keys");
    check_pointer(arguments->rows, arguments->count, "rows");
    check_pointer(arguments->found, arguments->count, "found");
    table.find(*arguments);
  });
}

SparringStatus upsert(void* self, SparringUpsert* arguments) {
  return run(self, arguments, [=](Table& table) {
    check_count(arguments->count);
    check(arguments->row_stride >= table.row_bytes(),
          "row_stride must be at least the bytes of a row", arguments->row_stride);
    check_pointer(arguments->keys, arguments->count, "keys");
    check_pointer(arguments->rows, arguments->count, "rows");
    table.upsert(*arguments);
  });
}

SparringStatus update(void* self, SparringUpdate* arguments) {
  return run(self, arguments, [=](Table& table) {
    check_count(arguments->count);
    check_pointer(arguments->keys, arguments->count, "keys");
    check_callback(arguments->change != nullptr, "change");
    table.update(*arguments);
  });
}

SparringStatus erase(void* self, SparringErase* arguments) {
  return run(self, arguments, [=](Table& table) {
    check_count(arguments->count);
    check_pointer(arguments->keys, arguments->count, "keys");
    table.erase(*arguments);
  });
}

SparringStatus scan(void* self, SparringScan* arguments) {
  return run(self, arguments, [=](Table& table) {
    check_columns(arguments->columns, table.row_bytes());
    check(arguments->capacity >= 1, "capacity must be at least 1 row",
          static_cast<uint64_t>(arguments->capacity));
    check_pointer(arguments->keys, arguments->capacity, "keys");
    check(arguments->cursor[1] <= 1, "cursor must be zero or come from the chunk before",
          arguments->cursor[1]);
    table.scan(*arguments);
  });
}

SparringStatus stat(void* self, SparringStat* arguments) {
  return run(self, arguments, [=](Table& table) { table.stat(*arguments); });
}

SparringStatus flush(void* self, SparringPlain* arguments) {
  return run(self, arguments, [](Table& table) { table.flush(); });
}

SparringStatus clear(void* self, SparringPlain* arguments) {
  return run(self, arguments, [](Table& table) { table.clear(); });
}

}  // namespace

SparringStorage* make_storage(std::shared_ptr<Table> table, const std::string& distribution) {
  auto owner = std::make_unique<Owner>();
  owner->distribution = distribution;
  owner->table = std::move(table);
  owner->storage = {
      .version = {SPARRING_STORAGE_ABI_MAJOR, SPARRING_STORAGE_ABI_MINOR},
      .release = [](SparringStorage* storage) { delete reinterpret_cast<Owner*>(storage); },
      .struct_bytes = sizeof(SparringStorage),
      .distribution = owner->distribution.c_str(),
      .self = owner->table.get(),
      .find = find,
      .upsert = upsert,
      .erase = erase,
      .scan = scan,
      .stat = stat,
      .flush = flush,
      .clear = clear,
      .touch = nullptr,
      .evict = nullptr,
      .set_option = nullptr,
      .visit = nullptr,
      .update = update,
  };
  return &owner.release()->storage;
}

}  // namespace sparring::flash
