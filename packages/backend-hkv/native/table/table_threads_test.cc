// Many readers concurrent with one writer, and concurrent writers. Intended to run
// under ThreadSanitizer too.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "client.h"
#include "thread_executor.h"

using namespace sparring::hkv;
using namespace sparring::hkv::testing;

namespace {

constexpr uint64_t kRowBytes = 64;
constexpr int64_t kKeys = 3000;

// A row is one number, repeated; a torn row would contain two.
void fill_rows(std::vector<uint64_t>& rows, uint64_t value) { rows.assign(rows.size(), value); }

bool is_whole(const uint64_t* row) {
  for (uint64_t word = 1; word < kRowBytes / 8; ++word) {
    if (row[word] != row[0]) return false;
  }
  return true;
}

struct Session {
  explicit Session(SparringStorage* storage, const SparringExecutor* executor)
      : storage(storage), executor(executor), keys(kKeys), rows(kKeys * kRowBytes / 8),
        found(kKeys) {
    for (int64_t key = 0; key < kKeys; ++key) keys[static_cast<size_t>(key)] = key * 13 - 500;
  }

  template <class Arguments>
  Arguments arguments() const {
    Arguments arguments{};
    arguments.call = {sizeof(Arguments), {1, 0}, nullptr, executor, {}};
    return arguments;
  }

  void find() {
    auto call = arguments<SparringFind>();
    call.count = kKeys;
    call.keys = keys.data();
    call.columns = {0, kRowBytes};
    call.rows = rows.data();
    call.row_stride = kRowBytes;
    call.found = found.data();
    CHECK(storage->find(storage->self, &call) == SPARRING_OK);
  }

  SparringStatus upsert(uint64_t value, int64_t begin, int64_t end) {
    fill_rows(rows, value);
    auto call = arguments<SparringUpsert>();
    call.count = end - begin;
    call.keys = keys.data() + begin;
    call.rows = rows.data();
    call.row_stride = kRowBytes;
    return storage->upsert(storage->self, &call);
  }

  SparringStorage* storage;
  const SparringExecutor* executor;
  std::vector<int64_t> keys;
  std::vector<uint64_t> rows;
  std::vector<uint8_t> found;
};

void readers_see_whole_calls_only(const TableOptions& options) {
  Client client(options);
  sparring::testing::ThreadExecutor executor(2);
  std::atomic<bool> is_over{false};
  std::atomic<int> num_finds{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&, reader] {
      Session session(client.get(), reader == 0 ? executor.get() : nullptr);
      uint64_t last = 0;
      while (!is_over.load()) {
        session.find();
        ++num_finds;
        // Each upsert wrote all keys, so all rows of a find are from one upsert, not older than the
        // last one; or there are none, after an erase.
        for (int64_t i = 0; i < kKeys; ++i) {
          CHECK(session.found[static_cast<size_t>(i)] == session.found[0]);
          const uint64_t* row = session.rows.data() + i * static_cast<int64_t>(kRowBytes / 8);
          CHECK(is_whole(row) && row[0] == session.rows[0]);
        }
        if (session.found[0] == 1) {
          CHECK(session.rows[0] >= last);
          last = session.rows[0];
        }
      }
    });
  }
  std::thread scanner([&] {
    Session session(client.get(), nullptr);
    std::vector<uint64_t> scores(1000);
    while (!is_over.load()) {
      auto call = session.arguments<SparringScan>();
      call.capacity = 1000;
      call.columns = {0, kRowBytes};
      call.keys = session.keys.data();
      call.rows = session.rows.data();
      call.scores = scores.data();
      while (call.is_done == 0) {
        CHECK(client.get()->scan(client.get()->self, &call) == SPARRING_OK);
        for (int64_t i = 0; i < call.count; ++i) {
          CHECK(is_whole(session.rows.data() + i * static_cast<int64_t>(kRowBytes / 8)));
        }
      }
      auto stat = session.arguments<SparringStat>();
      CHECK(client.get()->stat(client.get()->self, &stat) == SPARRING_OK);
      CHECK(stat.size == 0 || stat.size == kKeys);
    }
  });
  Session writer(client.get(), executor.get());
  for (uint64_t value = 1; value <= 40 || num_finds.load() < 20; ++value) {
    CHECK(writer.upsert(value, 0, kKeys) == SPARRING_OK);
    if (value % 10 == 0) {
      auto erase = writer.arguments<SparringErase>();
      erase.count = kKeys;
      erase.keys = writer.keys.data();
      CHECK(client.get()->erase(client.get()->self, &erase) == SPARRING_OK);
      CHECK(erase.erased == kKeys);
    }
    if (client.get()->touch != nullptr) {
      auto touch = writer.arguments<SparringTouch>();
      touch.count = kKeys;
      touch.keys = writer.keys.data();
      CHECK(client.get()->touch(client.get()->self, &touch) == SPARRING_OK);
    }
  }
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  scanner.join();
}

void readers_see_whole_calls_of_a_growing_table() {
  readers_see_whole_calls_only({.row_bytes = kRowBytes});
}

void readers_see_whole_calls_of_an_evicting_table() {
  readers_see_whole_calls_only(
      {.row_bytes = kRowBytes, .capacity = 3 * kKeys, .policy = PolicyKind::kLru});
}

void writers_beside_each_other_take_turns() {
  Client client({.row_bytes = kRowBytes});
  std::vector<std::thread> writers;
  for (int64_t part = 0; part < 3; ++part) {
    writers.emplace_back([&, part] {
      Session session(client.get(), nullptr);
      for (uint64_t value = 1; value <= 30; ++value) {
        CHECK(session.upsert(value, part * 1000, (part + 1) * 1000) == SPARRING_OK);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  Session reader(client.get(), nullptr);
  reader.find();
  for (int64_t i = 0; i < kKeys; ++i) {
    CHECK(reader.found[static_cast<size_t>(i)] == 1);
    const uint64_t* row = reader.rows.data() + i * static_cast<int64_t>(kRowBytes / 8);
    CHECK(is_whole(row) && row[0] == 30);
  }
}

void readers_do_not_starve_a_writer() {
  Client client({.row_bytes = kRowBytes});
  std::atomic<bool> is_over{false};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&] {
      Session session(client.get(), nullptr);
      while (!is_over.load()) session.find();
    });
  }
  Session writer(client.get(), nullptr);
  for (uint64_t value = 1; value <= 50; ++value) {
    CHECK(writer.upsert(value, 0, 10) == SPARRING_OK);
  }
  is_over = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"readers see whole calls of a growing table", readers_see_whole_calls_of_a_growing_table},
      {"readers see whole calls of an evicting table",
       readers_see_whole_calls_of_an_evicting_table},
      {"concurrent writers take turns", writers_beside_each_other_take_turns},
      {"readers do not starve a writer", readers_do_not_starve_a_writer},
  });
}
