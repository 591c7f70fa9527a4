// Adapts a C++ class to a SparringStorage: the implementation of storage_abi.h that
// every native backend in C++ needs.
//
// PURPOSE
//   A backend implements a Table whose methods receive the argument structs of the
//   ABI and may throw. `make_storage<Table>` creates the struct of function pointers.
//   Each function checks its arguments, calls the method, and converts exceptions to
//   a status and a message. The header is compiled into the backend. The backend does
//   not link to core, and the interface between packages is storage_abi.h, in C.
//
// THE TABLE
//   required         uint64_t row_bytes() const, and find, upsert, erase, scan,
//                    stat (each with the struct of its name, by reference), clear()
//   optional         visit, update, touch, evict (likewise),
//                    set_option(const char* name, const char* value), flush()
//                    A missing method is NULL in the struct. `flush`, which must
//                    not be NULL, does nothing if the method is missing.
//   bool keeps_scores() const
//                    called once, when the storage is created. If it returns false,
//                    `touch` and `evict` are NULL although the methods exist.
//   auto use()       the returned object lives as long as a call, for example a lock
//                    for which `close` waits. It throws SPARRING_CLOSED.
//   void check_device(const SparringCall&) const
//                    throws for devices that the table does not support. Without
//                    it only the CPU is supported.
//   static constexpr bool kKeepsHandles = true
//                    visits may have empty columns, for row handles. `stat` must
//                    then report SPARRING_ROW_HANDLES.
//   static constexpr const char* kOutOfMemory
//                    message for a std::bad_alloc, for example whether the table was
//                    changed.
//   Counts, columns, strides and pointers that must not be NULL are checked before a
//   method is called. The table checks everything else: the cursor of a scan, scores,
//   keys, and names of options.
//
// THREADS
//   As in storage_abi.h; this header does not lock. `use` and the methods may be called
//   on several threads concurrently.
//
// ERRORS
//   Methods throw StatusError for a specific status. std::bad_alloc becomes
//   SPARRING_OUT_OF_MEMORY, any other exception SPARRING_INTERNAL. No exception leaves
//   a callback. Messages contain the operation, the value found, the value expected and
//   the fix.
//
// REQUIRES C++20.
#ifndef SPARRING_STORAGE_BORDER_H_
#define SPARRING_STORAGE_BORDER_H_

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "sparring/storage_abi.h"

namespace sparring::border {

// Exception of a table that becomes the status and the message of the call.
class StatusError : public std::runtime_error {
 public:
  StatusError(SparringStatus status, const std::string& message)
      : std::runtime_error(message), status_(status) {}

  SparringStatus status() const { return status_; }

 private:
  SparringStatus status_;
};

// The numbers in the message of SPARRING_DEVICE_MEMORY. The ABI transfers only the message, so
// they are written to it and parsed from it.
struct DeviceMemory {
  uint64_t asked_bytes;
  uint64_t free_bytes;
};
inline constexpr char kAskedText[] = " bytes of device memory were asked for, ";
inline constexpr char kFreeText[] = " are free";
inline std::string device_memory_text(const DeviceMemory& memory) {
  return std::to_string(memory.asked_bytes) + kAskedText + std::to_string(memory.free_bytes) +
         kFreeText;
}
// Returns false if the message does not contain the numbers.
inline bool read_device_memory(const std::string& message, DeviceMemory* memory) {
  const size_t asked_end = message.find(kAskedText);
  if (asked_end == std::string::npos || asked_end == 0) return false;
  const size_t before = message.find_last_not_of("0123456789", asked_end - 1);
  const size_t asked_begin = before == std::string::npos ? 0 : before + 1;
  const size_t free_begin = asked_end + sizeof(kAskedText) - 1;
  const size_t free_end = message.find(kFreeText, free_begin);
  if (asked_begin == asked_end || free_end == std::string::npos || free_end == free_begin) {
    return false;
  }
  *memory = {std::strtoull(message.c_str() + asked_begin, nullptr, 10),
             std::strtoull(message.c_str() + free_begin, nullptr, 10)};
  return true;
}

// Calls body(begin, end) for disjoint ranges that cover [0, count), on the threads of
// `executor`. Each range except the last has at least `grain` elements. Runs only on the
// calling thread if `executor` is NULL or has one thread, or if `count` is at most `grain`.
// Rethrows the first exception of `body`, after all ranges have ended.
template <class Body>
void parallel_for(const SparringExecutor* executor, int64_t count, int64_t grain,
                  const Body& body) {
  if (count <= 0) return;
  if (executor == nullptr || executor->concurrency < 2 || count <= grain) {
    body(int64_t{0}, count);
    return;
  }
  struct Context {
    const Body& body;
    std::atomic<bool> has_failed{false};
    std::exception_ptr error{};
  } shared{body};
  executor->parallel_for(
      executor->self, count, grain,
      [](void* opaque, int64_t begin, int64_t end) {
        auto& context = *static_cast<Context*>(opaque);
        try {
          context.body(begin, end);
        } catch (...) {
          if (!context.has_failed.exchange(true)) context.error = std::current_exception();
        }
      },
      &shared);
  if (shared.error) std::rethrow_exception(shared.error);
}

// ---- checks of arguments --------------------------------------------------
// All throw StatusError(SPARRING_INVALID_ARGUMENT) with the value that was found.

[[noreturn]] inline void refuse(const std::string& message) {
  throw StatusError(SPARRING_INVALID_ARGUMENT, message);
}

// `asked` describes the requirement, such as "row_stride must be at least the bytes of a row".
template <std::integral Number>
void check(bool is_right, const char* asked, Number found) {
  if (!is_right) refuse(std::string(asked) + "; found " + std::to_string(found));
}

inline void check_count(int64_t count, const char* name = "count") {
  if (count < 0) refuse(std::string(name) + " must not be negative; found " + std::to_string(count));
}

// An array with an element per key; it may be NULL only if `count` is 0.
inline void check_array(const void* array, int64_t count, const char* name) {
  if (array == nullptr && count > 0) {
    refuse(std::string(name) + " must not be NULL for " + std::to_string(count) + " keys");
  }
}

// A callback or a string.
inline void check_given(bool is_given, const char* name) {
  if (!is_given) refuse(std::string(name) + " must not be NULL");
}

// `may_be_empty`: [0, 0) is also valid.
inline void check_columns(const SparringColumns& columns, uint64_t row_bytes,
                          bool may_be_empty = false) {
  if (may_be_empty && columns.begin == 0 && columns.end == 0) return;
  if (columns.begin >= columns.end || columns.end > row_bytes) {
    refuse("columns must be a non-empty range of bytes within [0, " + std::to_string(row_bytes) +
           "); found [" + std::to_string(columns.begin) + ", " + std::to_string(columns.end) +
           ")");
  }
}

// For tables that support only the CPU. Throws StatusError(SPARRING_UNSUPPORTED).
inline void check_is_cpu(const SparringDevice& device) {
  constexpr int32_t kCpu = 1;  // DLPack's code
  if (device.type == kCpu) return;
  throw StatusError(SPARRING_UNSUPPORTED, "device must be the CPU (type 1); found type " +
                                              std::to_string(device.type) +
                                              "; copy the arrays to the host");
}

// ---- callbacks ------------------------------------------------------------

// Sets call.error to a copy of `message`, which error.release frees.
inline void set_error(SparringCall& call, const char* message) noexcept {
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

// Runs `body`, and converts an exception to a status and call.error.
template <class Body>
SparringStatus guard(SparringCall& call, const char* out_of_memory, const Body& body) noexcept {
  call.error = {};
  try {
    body();
    return SPARRING_OK;
  } catch (const StatusError& error) {
    set_error(call, error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    set_error(call, out_of_memory);
    return SPARRING_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_error(call, error.what());
    return SPARRING_INTERNAL;
  } catch (...) {
    set_error(call, "an unknown exception");
    return SPARRING_INTERNAL;
  }
}

// The methods that make_storage requires of a Table.
template <class Table>
concept IsTable =
    requires(Table& table, SparringFind& find, SparringUpsert& upsert, SparringErase& erase,
             SparringScan& scan, SparringStat& stat) {
      { std::as_const(table).row_bytes() } -> std::convertible_to<uint64_t>;
      table.find(find);
      table.upsert(upsert);
      table.erase(erase);
      table.scan(scan);
      table.stat(stat);
      table.clear();
    };

// Size of the arguments in their first revision. A caller that was built with an older header passes
// fewer bytes than sizeof.
template <class Arguments>
inline constexpr size_t kFirstBytes = sizeof(Arguments);
template <>
inline constexpr size_t kFirstBytes<SparringVisit> = offsetof(SparringVisit, handles);
template <>
inline constexpr size_t kFirstBytes<SparringUpdate> = offsetof(SparringUpdate, handles);

// The functions of the struct; `self` is a Table.
template <IsTable Table>
struct Callbacks {
  static SparringStatus find(void* self, SparringFind* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringFind& call) {
      check_count(call.count);
      check_columns(call.columns, table.row_bytes());
      check(call.row_stride >= call.columns.end - call.columns.begin,
            "row_stride must be at least the bytes of the columns", call.row_stride);
      check_array(call.keys, call.count, "keys");
      check_array(call.rows, call.count, "rows");
      check_array(call.found, call.count, "found");
      table.find(call);
    });
  }

  static SparringStatus upsert(void* self, SparringUpsert* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringUpsert& call) {
      check_count(call.count);
      check(call.row_stride >= table.row_bytes(),
            "row_stride must be at least the bytes of a row", call.row_stride);
      check_array(call.keys, call.count, "keys");
      check_array(call.rows, call.count, "rows");
      table.upsert(call);
    });
  }

  static SparringStatus erase(void* self, SparringErase* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringErase& call) {
      check_count(call.count);
      check_array(call.keys, call.count, "keys");
      table.erase(call);
    });
  }

  static SparringStatus scan(void* self, SparringScan* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringScan& call) {
      check_columns(call.columns, table.row_bytes());
      check(call.capacity >= 1, "capacity must be at least 1 row", call.capacity);
      check_array(call.keys, call.capacity, "keys");
      table.scan(call);
    });
  }

  static SparringStatus stat(void* self, SparringStat* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringStat& call) { table.stat(call); });
  }

  static SparringStatus flush(void* self, SparringPlain* arguments) noexcept {
    return run(self, *arguments, []([[maybe_unused]] Table& table, SparringPlain&) {
      if constexpr (requires { table.flush(); }) table.flush();
    });
  }

  static SparringStatus clear(void* self, SparringPlain* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringPlain&) { table.clear(); });
  }

  static SparringStatus touch(void* self, SparringTouch* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringTouch& call) {
      check_count(call.count);
      check_array(call.keys, call.count, "keys");
      table.touch(call);
    });
  }

  static SparringStatus evict(void* self, SparringEvict* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringEvict& call) {
      check_count(call.wanted, "wanted");
      table.evict(call);
    });
  }

  static SparringStatus set_option(void* self, SparringSetOption* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringSetOption& call) {
      check_given(call.name != nullptr, "name");
      check_given(call.value != nullptr, "value");
      table.set_option(call.name, call.value);
    });
  }

  static SparringStatus visit(void* self, SparringVisit* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringVisit& call) {
      check_count(call.count);
      check_columns(call.columns, table.row_bytes(), keeps_handles());
      check_array(call.keys, call.count, "keys");
      check_given(call.show != nullptr, "show");
      table.visit(call);
    });
  }

  static SparringStatus update(void* self, SparringUpdate* arguments) noexcept {
    return run(self, *arguments, [](Table& table, SparringUpdate& call) {
      check_count(call.count);
      check_array(call.keys, call.count, "keys");
      check_given(call.change != nullptr, "change");
      table.update(call);
    });
  }

 private:
  static constexpr bool keeps_handles() {
    if constexpr (requires { Table::kKeepsHandles; }) {
      return Table::kKeepsHandles;
    } else {
      return false;
    }
  }

  // Members that an older caller does not have are zero for the table, and are not written back.
  template <class Arguments, class Body>
  static SparringStatus run(void* self, Arguments& arguments, const Body& body) noexcept {
    const uint64_t bytes = arguments.call.struct_bytes;
    if (bytes >= sizeof(Arguments) || bytes < kFirstBytes<Arguments>) {
      return run_whole(self, arguments, body);
    }
    Arguments whole{};
    std::memcpy(static_cast<void*>(&whole), &arguments, bytes);
    whole.call.struct_bytes = sizeof(Arguments);
    const SparringStatus status = run_whole(self, whole, body);
    whole.call.struct_bytes = bytes;
    std::memcpy(static_cast<void*>(&arguments), &whole, bytes);
    return status;
  }

  template <class Arguments, class Body>
  static SparringStatus run_whole(void* self, Arguments& arguments, const Body& body) noexcept {
    return guard(arguments.call, out_of_memory(), [&] {
      check(arguments.call.struct_bytes >= sizeof(Arguments),
            "struct_bytes must cover the arguments of 1.0", arguments.call.struct_bytes);
      auto& table = *static_cast<Table*>(self);
      if constexpr (requires { table.check_device(arguments.call); }) {
        table.check_device(arguments.call);
      } else {
        check_is_cpu(arguments.call.device);
      }
      if constexpr (requires { table.use(); }) {
        [[maybe_unused]] const auto in_use = table.use();
        body(table, arguments);
      } else {
        body(table, arguments);
      }
    });
  }

  static constexpr const char* out_of_memory() {
    if constexpr (requires { Table::kOutOfMemory; }) {
      return Table::kOutOfMemory;
    } else {
      return "the system has no more memory for this call";
    }
  }
};

// Creates the struct. Its `release` frees it and its reference to `table`; the backend may keep
// another reference, to close the table. `distribution` is such as "sparring-hkv 0.1.0".
// Throws std::bad_alloc.
template <IsTable Table>
SparringStorage* make_storage(std::shared_ptr<Table> table, std::string distribution) {
  struct Owner : SparringStorage {
    std::string distribution_text;
    std::shared_ptr<Table> table;
  };
  using Its = Callbacks<Table>;
  auto owner = std::make_unique<Owner>();
  owner->distribution_text = std::move(distribution);
  owner->table = std::move(table);
  Table& its = *owner->table;
  bool keeps_scores = true;
  if constexpr (requires { its.keeps_scores(); }) keeps_scores = its.keeps_scores();

  SparringStorage& storage = *owner;
  storage = {};
  storage.version = {SPARRING_STORAGE_ABI_MAJOR, SPARRING_STORAGE_ABI_MINOR};
  storage.release = [](SparringStorage* self) { delete static_cast<Owner*>(self); };
  storage.struct_bytes = sizeof(SparringStorage);
  storage.distribution = owner->distribution_text.c_str();
  storage.self = &its;
  storage.find = Its::find;
  storage.upsert = Its::upsert;
  storage.erase = Its::erase;
  storage.scan = Its::scan;
  storage.stat = Its::stat;
  storage.flush = Its::flush;
  storage.clear = Its::clear;
  if constexpr (requires(SparringTouch& call) { its.touch(call); }) {
    if (keeps_scores) storage.touch = Its::touch;
  }
  if constexpr (requires(SparringEvict& call) { its.evict(call); }) {
    if (keeps_scores) storage.evict = Its::evict;
  }
  if constexpr (requires(const char* text) { its.set_option(text, text); }) {
    storage.set_option = Its::set_option;
  }
  if constexpr (requires(SparringVisit& call) { its.visit(call); }) storage.visit = Its::visit;
  if constexpr (requires(SparringUpdate& call) { its.update(call); }) storage.update = Its::update;
  return owner.release();
}

}  // namespace sparring::border

#endif  // SPARRING_STORAGE_BORDER_H_
