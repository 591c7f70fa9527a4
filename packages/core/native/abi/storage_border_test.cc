// Tests of storage_border.h: checks of arguments, conversion of exceptions, and tables
// without optional methods.
#include "sparring/storage_border.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "testing/check.h"
#include "testing/thread_executor.h"

namespace sparring::border {
namespace {

constexpr uint64_t kRowBytes = 8;

// The required methods of a table. Each call executes `act`.
struct Least {
  void (*act)() = [] {};
  int num_calls = 0;

  uint64_t row_bytes() const { return kRowBytes; }
  void find(SparringFind&) { called(); }
  void upsert(SparringUpsert&) { called(); }
  void erase(SparringErase&) { called(); }
  void scan(SparringScan&) { called(); }
  void stat(SparringStat& call) { call.row_bytes = kRowBytes; }
  void clear() { called(); }

  void called() {
    ++num_calls;
    act();
  }
};

// The optional methods of a table.
struct Most : Least {
  static constexpr const char* kOutOfMemory = "no memory; nothing was changed";
  bool has_scores = true;
  bool is_closed = false;
  int num_in_use = 0;
  int most_in_use = 0;

  struct Use {
    Most* table;
    explicit Use(Most* used) : table(used) { ++table->num_in_use; }
    Use(const Use&) = delete;
    ~Use() { --table->num_in_use; }
  };

  Use use() {
    if (is_closed) throw StatusError(SPARRING_CLOSED, "closed; open it again");
    return Use(this);
  }
  void check_device(const SparringCall& call) const {
    if (call.device.type != 2) throw StatusError(SPARRING_UNSUPPORTED, "not on a GPU");
  }
  bool keeps_scores() const { return has_scores; }
  void visit(SparringVisit&) { called(); }
  void update(SparringUpdate&) { called(); }
  void touch(SparringTouch&) { called(); }
  void evict(SparringEvict&) { called(); }
  void set_option(const char*, const char*) { called(); }
  void flush() {
    most_in_use = num_in_use;
    called();
  }
};

template <class Table>
struct Made {
  std::shared_ptr<Table> table = std::make_shared<Table>();
  std::unique_ptr<SparringStorage, void (*)(SparringStorage*)> storage{
      make_storage<Table>(table, "test 1.0"), [](SparringStorage* self) { self->release(self); }};

  // The status of a call and, after an error, its message.
  template <class Arguments>
  std::pair<SparringStatus, std::string> call(SparringStatus (*callback)(void*, Arguments*),
                                              Arguments arguments) {
    const SparringStatus status = callback(storage->self, &arguments);
    std::string message;
    if (status != SPARRING_OK) {
      message = arguments.call.error.message;
      arguments.call.error.release(&arguments.call.error);
    }
    CHECK(arguments.call.error.message == nullptr && arguments.call.error.owner == nullptr);
    return {status, message};
  }
};

template <class Arguments>
Arguments arguments_on(int32_t device_type) {
  Arguments arguments{};
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device = {device_type, 0};
  return arguments;
}

void missing_optional_methods_are_null() {
  const Made<Least> least;
  const SparringStorage& storage = *least.storage;
  CHECK(storage.version.major == SPARRING_STORAGE_ABI_MAJOR);
  CHECK(storage.version.minor == SPARRING_STORAGE_ABI_MINOR);
  CHECK(storage.struct_bytes == sizeof(SparringStorage));
  CHECK(std::string(storage.distribution) == "test 1.0");
  CHECK(storage.find && storage.upsert && storage.erase && storage.scan && storage.stat);
  CHECK(storage.flush && storage.clear);
  CHECK(!storage.touch && !storage.evict && !storage.set_option);
  CHECK(!storage.visit && !storage.update);
}

void existing_optional_methods_are_exported() {
  const Made<Most> most;
  const SparringStorage& storage = *most.storage;
  CHECK(storage.touch && storage.evict && storage.set_option && storage.visit && storage.update);
}

void touch_and_evict_are_null_if_no_scores_are_stored() {
  auto table = std::make_shared<Most>();
  table->has_scores = false;
  SparringStorage* storage = make_storage<Most>(table, "test 1.0");
  CHECK(!storage->touch && !storage->evict);
  CHECK(storage->set_option && storage->visit && storage->update);
  storage->release(storage);
}

void release_frees_the_reference_to_the_table() {
  const auto table = std::make_shared<Least>();
  SparringStorage* storage = make_storage<Least>(table, "test 1.0");
  CHECK(table.use_count() == 2);
  storage->release(storage);
  CHECK(table.use_count() == 1);
}

void flush_of_a_table_that_buffers_nothing_is_ok() {
  Made<Least> least;
  CHECK(least.call(least.storage->flush, arguments_on<SparringPlain>(1)).first == SPARRING_OK);
  CHECK(least.table->num_calls == 0);
}

void exceptions_become_statuses_and_messages() {
  Made<Least> least;
  const auto answer = [&](void (*act)()) {
    least.table->act = act;
    return least.call(least.storage->clear, arguments_on<SparringPlain>(1));
  };
  using Answer = std::pair<SparringStatus, std::string>;
  CHECK(answer([] {}) == Answer(SPARRING_OK, ""));
  CHECK(answer([] { throw StatusError(SPARRING_CORRUPT, "bad file"); }) ==
        Answer(SPARRING_CORRUPT, "bad file"));
  CHECK(answer([] { throw std::bad_alloc(); }) ==
        Answer(SPARRING_OUT_OF_MEMORY, "the system has no more memory for this call"));
  CHECK(answer([] { throw std::logic_error("a bug"); }) == Answer(SPARRING_INTERNAL, "a bug"));
  CHECK(answer([] { throw 7; }) == Answer(SPARRING_INTERNAL, "an unknown exception"));
}

void a_table_provides_its_own_message_for_a_lack_of_memory() {
  Made<Most> most;
  most.table->act = [] { throw std::bad_alloc(); };
  const auto [status, message] = most.call(most.storage->flush, arguments_on<SparringPlain>(2));
  CHECK(status == SPARRING_OUT_OF_MEMORY && message == Most::kOutOfMemory);
}

void a_call_keeps_the_table_in_use() {
  Made<Most> most;
  CHECK(most.call(most.storage->flush, arguments_on<SparringPlain>(2)).first == SPARRING_OK);
  CHECK(most.table->most_in_use == 1 && most.table->num_in_use == 0);
  most.table->act = [] { throw std::runtime_error("failed"); };
  CHECK(most.call(most.storage->flush, arguments_on<SparringPlain>(2)).first == SPARRING_INTERNAL);
  CHECK(most.table->num_in_use == 0);
}

void calls_of_a_closed_table_are_rejected() {
  Made<Most> most;
  most.table->is_closed = true;
  const auto [status, message] = most.call(most.storage->clear, arguments_on<SparringPlain>(2));
  CHECK(status == SPARRING_CLOSED && message == "closed; open it again");
  CHECK(most.table->num_calls == 0);
}

void devices_are_rejected_unless_the_table_supports_them() {
  Made<Least> least;
  const auto [status, message] = least.call(least.storage->clear, arguments_on<SparringPlain>(2));
  CHECK(status == SPARRING_UNSUPPORTED && message.find("type 2") != std::string::npos);
  Made<Most> most;
  CHECK(most.call(most.storage->clear, arguments_on<SparringPlain>(2)).first == SPARRING_OK);
  CHECK(most.call(most.storage->clear, arguments_on<SparringPlain>(1)).first ==
        SPARRING_UNSUPPORTED);
}

// Checks that a call with one invalid argument fails with the name of the argument, and does
// not reach the table.
template <class Table, class Arguments, class Change>
bool refuses(Made<Table>& made, SparringStatus (*callback)(void*, Arguments*),
             const Arguments& valid, const Change& change, const char* named) {
  const int before = made.table->num_calls;
  CHECK(made.call(callback, valid).first == SPARRING_OK);
  CHECK(made.table->num_calls == before + 1);
  Arguments changed = valid;
  change(changed);
  const auto [status, message] = made.call(callback, changed);
  CHECK(made.table->num_calls == before + 1);
  return status == SPARRING_INVALID_ARGUMENT && message.starts_with(named);
}

void invalid_arguments_are_rejected_by_name() {
  Made<Most> most;
  const SparringStorage& storage = *most.storage;
  const std::array<int64_t, 2> keys{1, 2};
  std::array<char, 2 * kRowBytes> rows{};
  std::array<uint8_t, 2> found{};
  std::array<int64_t, 2> scanned{};

  auto find = arguments_on<SparringFind>(2);
  find.count = 2;
  find.keys = keys.data();
  find.columns = {0, kRowBytes};
  find.rows = rows.data();
  find.row_stride = kRowBytes;
  find.found = found.data();
  const auto find_refuses = [&](auto change, const char* named) {
    return refuses(most, storage.find, find, change, named);
  };
  CHECK(find_refuses([](auto& call) { call.call.struct_bytes -= 1; }, "struct_bytes"));
  CHECK(find_refuses([](auto& call) { call.count = -1; }, "count"));
  CHECK(find_refuses([](auto& call) { call.keys = nullptr; }, "keys"));
  CHECK(find_refuses([](auto& call) { call.rows = nullptr; }, "rows"));
  CHECK(find_refuses([](auto& call) { call.found = nullptr; }, "found"));
  CHECK(find_refuses([](auto& call) { call.columns = {4, 4}; }, "columns"));
  CHECK(find_refuses([](auto& call) { call.columns = {0, kRowBytes + 1}; }, "columns"));
  CHECK(find_refuses([](auto& call) { call.row_stride -= 1; }, "row_stride"));

  auto upsert = arguments_on<SparringUpsert>(2);
  upsert.count = 2;
  upsert.keys = keys.data();
  upsert.rows = rows.data();
  upsert.row_stride = kRowBytes;
  const auto upsert_refuses = [&](auto change, const char* named) {
    return refuses(most, storage.upsert, upsert, change, named);
  };
  CHECK(upsert_refuses([](auto& call) { call.count = -1; }, "count"));
  CHECK(upsert_refuses([](auto& call) { call.keys = nullptr; }, "keys"));
  CHECK(upsert_refuses([](auto& call) { call.rows = nullptr; }, "rows"));
  CHECK(upsert_refuses([](auto& call) { call.row_stride -= 1; }, "row_stride"));

  auto scan = arguments_on<SparringScan>(2);
  scan.capacity = 2;
  scan.columns = {0, kRowBytes};
  scan.keys = scanned.data();
  const auto scan_refuses = [&](auto change, const char* named) {
    return refuses(most, storage.scan, scan, change, named);
  };
  CHECK(scan_refuses([](auto& call) { call.capacity = 0; }, "capacity"));
  CHECK(scan_refuses([](auto& call) { call.keys = nullptr; }, "keys"));
  CHECK(scan_refuses([](auto& call) { call.columns.begin = kRowBytes; }, "columns"));

  auto erase = arguments_on<SparringErase>(2);
  CHECK(refuses(most, storage.erase, erase, [](auto& call) { call.count = 1; }, "keys"));
  auto touch = arguments_on<SparringTouch>(2);
  CHECK(refuses(most, storage.touch, touch, [](auto& call) { call.count = 1; }, "keys"));
  auto evict = arguments_on<SparringEvict>(2);
  CHECK(refuses(most, storage.evict, evict, [](auto& call) { call.wanted = -1; }, "wanted"));
  auto option = arguments_on<SparringSetOption>(2);
  option.name = option.value = "epoch";
  const auto set_option = storage.set_option;
  CHECK(refuses(most, set_option, option, [](auto& call) { call.name = nullptr; }, "name"));
  CHECK(refuses(most, set_option, option, [](auto& call) { call.value = nullptr; }, "value"));

  auto visit = arguments_on<SparringVisit>(2);
  visit.columns = {0, kRowBytes};
  visit.show = [](void*, int64_t, int64_t, const void* const*) { return int32_t{0}; };
  const auto visit_refuses = [&](auto change, const char* named) {
    return refuses(most, storage.visit, visit, change, named);
  };
  CHECK(visit_refuses([](auto& call) { call.count = 1; }, "keys"));
  CHECK(visit_refuses([](auto& call) { call.columns = {0, 0}; }, "columns"));
  CHECK(visit_refuses([](auto& call) { call.show = nullptr; }, "show"));

  auto update = arguments_on<SparringUpdate>(2);
  update.change = [](void*, int64_t, const int64_t*, void* const*, const uint8_t*) {};
  const auto update_refuses = [&](auto change, const char* named) {
    return refuses(most, storage.update, update, change, named);
  };
  CHECK(update_refuses([](auto& call) { call.count = 1; }, "keys"));
  CHECK(update_refuses([](auto& call) { call.change = nullptr; }, "change"));
}

void loops_cover_everything_once_on_the_threads_of_an_executor() {
  const testing::ThreadExecutor executor(3);
  const SparringExecutor* const none = nullptr;
  for (const SparringExecutor* lent : {executor.get(), none}) {
    std::vector<std::atomic<int>> times(1'000);
    parallel_for(lent, 1'000, 7, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++times[static_cast<size_t>(i)];
    });
    for (const auto& each : times) CHECK(each == 1);
    parallel_for(lent, 0, 7, [&](int64_t, int64_t) { times[0] = 2; });
    CHECK(times[0] == 1);
  }
}

void exceptions_of_a_loop_reach_its_caller() {
  const testing::ThreadExecutor executor(3);
  std::atomic<int64_t> num_done{0};
  CHECK_THROWS(parallel_for(executor.get(), 1'000, 10,
                            [&](int64_t begin, int64_t end) {
                              num_done += end - begin;
                              if (begin % 100 == 0) throw StatusError(SPARRING_IO, "disk");
                            }),
               StatusError);
  CHECK(num_done == 1'000);
}

// A table of this revision, called by a program that was built with the header of 1.1.
struct Handling : Least {
  static constexpr bool kKeepsHandles = true;
  void visit(SparringVisit& call) {
    called();
    CHECK(call.handles == nullptr && call.generation == 0);
    call.generation = 7;
  }
};

void an_older_caller_is_supported_and_its_memory_is_not_overwritten() {
  Made<Handling> made;
  auto visit = arguments_on<SparringVisit>(1);
  visit.show = [](void*, int64_t, int64_t, const void* const*) { return int32_t{0}; };
  const void* const none = nullptr;
  // Memory of the caller that follows the older struct.
  visit.handles = &none;
  visit.generation = 3;
  visit.call.struct_bytes = offsetof(SparringVisit, handles);
  CHECK(made.storage->visit(made.storage->self, &visit) == SPARRING_OK);
  CHECK(made.table->num_calls == 1);
  CHECK(visit.handles == &none && visit.generation == 3);
  CHECK(visit.call.struct_bytes == offsetof(SparringVisit, handles));

  visit.handles = nullptr;
  visit.generation = 0;
  visit.call.struct_bytes = sizeof(SparringVisit);
  CHECK(made.storage->visit(made.storage->self, &visit) == SPARRING_OK && visit.generation == 7);
  visit.call.struct_bytes = offsetof(SparringVisit, handles) - 8;
  CHECK(made.call(made.storage->visit, visit).first == SPARRING_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace sparring::border

int main() {
  using namespace sparring::border;
  return sparring::testing::run({
      {"missing optional methods are NULL", missing_optional_methods_are_null},
      {"existing optional methods are exported", existing_optional_methods_are_exported},
      {"touch and evict are NULL if no scores are stored",
       touch_and_evict_are_null_if_no_scores_are_stored},
      {"release frees the reference to the table", release_frees_the_reference_to_the_table},
      {"flush of a table that buffers nothing is OK", flush_of_a_table_that_buffers_nothing_is_ok},
      {"exceptions become statuses and messages", exceptions_become_statuses_and_messages},
      {"a table provides its own message for a lack of memory",
       a_table_provides_its_own_message_for_a_lack_of_memory},
      {"a call keeps the table in use", a_call_keeps_the_table_in_use},
      {"calls of a closed table are rejected", calls_of_a_closed_table_are_rejected},
      {"devices are rejected unless the table supports them",
       devices_are_rejected_unless_the_table_supports_them},
      {"invalid arguments are rejected by name", invalid_arguments_are_rejected_by_name},
      {"loops cover everything once on the threads of an executor",
       loops_cover_everything_once_on_the_threads_of_an_executor},
      {"exceptions of a loop reach its caller", exceptions_of_a_loop_reach_its_caller},
      {"an older caller is supported, and its memory is not overwritten",
       an_older_caller_is_supported_and_its_memory_is_not_overwritten},
  });
}
