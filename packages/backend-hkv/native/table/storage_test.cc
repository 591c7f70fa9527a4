// Tests the C ABI: which calls it rejects, and that a rejected call changes nothing.
#include "storage.h"

#include <cstring>
#include <string>

#include "check.h"
#include "client.h"

using namespace sparring::hkv;
using namespace sparring::hkv::testing;

namespace {

void version_and_names_are_set() {
  Client client({.row_bytes = 8, .policy = PolicyKind::kLru});
  CHECK(client.get()->version.major == 1 && client.get()->version.minor == SPARRING_STORAGE_ABI_MINOR);
  CHECK(client.get()->struct_bytes == sizeof(SparringStorage));
  CHECK(std::string(client.get()->distribution) == "test 0.1.0");
  CHECK(client.get()->touch != nullptr && client.get()->evict != nullptr);
  Client plain({.row_bytes = 8});
  CHECK(plain.get()->touch == nullptr && plain.get()->evict == nullptr);
}

void capabilities_follow_the_options() {
  const auto bits = [](const TableOptions& options) { return Client(options).stat().capabilities; };
  const uint64_t reads = SPARRING_CONCURRENT_READS | SPARRING_ROW_HANDLES;
  CHECK(bits({.row_bytes = 8}) == reads);
  CHECK(bits({.row_bytes = 8, .capacity = 9}) == (reads | SPARRING_BOUNDED));
  CHECK(bits({.row_bytes = 8, .policy = PolicyKind::kLru}) == reads);
  CHECK(bits({.row_bytes = 8, .memory_bytes = 1 << 20, .policy = PolicyKind::kCustom}) ==
        (reads | SPARRING_BOUNDED | SPARRING_EVICTS | SPARRING_SCORES_GIVEN));
}

void invalid_arguments_are_rejected_by_name() {
  Client client({.row_bytes = 8, .policy = PolicyKind::kLru});
  CHECK(client.upsert({1, 2}, 0) == SPARRING_OK);
  const Rows before = client.scan();
  const int64_t keys[] = {1, 9};
  char rows[16] = {};
  uint8_t found[2];
  const auto valid = [&] {
    auto arguments = client.arguments<SparringFind>();
    arguments.count = 2;
    arguments.keys = keys;
    arguments.columns = {0, 8};
    arguments.rows = rows;
    arguments.row_stride = 8;
    arguments.found = found;
    return arguments;
  };
  const auto find_refuses = [&](auto&& change, const char* word) {
    auto arguments = valid();
    change(arguments);
    return client.call(client.get()->find, arguments) == SPARRING_INVALID_ARGUMENT &&
           client.message().find(word) != std::string::npos;
  };
  CHECK(find_refuses([](SparringFind& a) { a.count = -1; }, "count"));
  CHECK(find_refuses([](SparringFind& a) { a.keys = nullptr; }, "keys"));
  CHECK(find_refuses([](SparringFind& a) { a.rows = nullptr; }, "rows"));
  CHECK(find_refuses([](SparringFind& a) { a.found = nullptr; }, "found"));
  CHECK(find_refuses([](SparringFind& a) { a.columns = {0, 9}; }, "columns"));
  CHECK(find_refuses([](SparringFind& a) { a.columns = {4, 4}; }, "columns"));
  CHECK(find_refuses([](SparringFind& a) { a.row_stride = 7; }, "row_stride"));
  CHECK(find_refuses([](SparringFind& a) { a.call.struct_bytes = 16; }, "struct_bytes"));
  auto elsewhere = valid();
  elsewhere.call.device = {2, 0};
  CHECK(client.call(client.get()->find, elsewhere) == SPARRING_UNSUPPORTED);

  auto upsert = client.arguments<SparringUpsert>();
  upsert.count = 2;
  upsert.keys = keys;
  upsert.rows = rows;
  upsert.row_stride = 4;
  CHECK(client.call(client.get()->upsert, upsert) == SPARRING_INVALID_ARGUMENT);
  const Scores scores = {1};
  CHECK(client.upsert({9}, 0, &scores) == SPARRING_UNSUPPORTED);
  CHECK(client.message().find("lru") != std::string::npos);
  CHECK(client.touch({1}, &scores) == SPARRING_UNSUPPORTED);

  auto scan = client.arguments<SparringScan>();
  scan.capacity = 0;
  scan.columns = {0, 8};
  CHECK(client.call(client.get()->scan, scan) == SPARRING_INVALID_ARGUMENT);
  auto evict = client.arguments<SparringEvict>();
  evict.wanted = -1;
  CHECK(client.call(client.get()->evict, evict) == SPARRING_INVALID_ARGUMENT);
  CHECK(client.set_option("epoch", "1") == SPARRING_UNSUPPORTED);
  CHECK(client.set_option("colour", "1") == SPARRING_INVALID_ARGUMENT);
  CHECK(client.scan() == before);
}

void epoch_is_parsed_strictly() {
  Client client({.row_bytes = 8, .policy = PolicyKind::kEpochLru});
  for (const char* wrong : {"", "x", "-1", "1.5", "2 ", "99999999999"}) {
    CHECK(client.set_option("epoch", wrong) == SPARRING_INVALID_ARGUMENT);
  }
  CHECK(client.set_option("epoch", "12") == SPARRING_OK);
  CHECK(client.upsert({1}, 0) == SPARRING_OK);
  CHECK(client.scan()[1].score == (uint64_t{12} << 32 | 1));
}

void empty_calls_are_ordinary() {
  Client client({.row_bytes = 8, .policy = PolicyKind::kLru});
  CHECK(client.find({}).empty());
  CHECK(client.upsert({}, 0) == SPARRING_OK);
  CHECK(client.erase({}) == 0);
  CHECK(client.touch({}) == SPARRING_OK);
  CHECK(client.evict(0).empty() && client.evict(5).empty());
  CHECK(client.scan().empty());
}

void a_failing_sink_is_reported_and_the_rows_stay_evicted() {
  Client client({.row_bytes = 8, .capacity = 10, .policy = PolicyKind::kLru});
  Keys keys;
  for (int64_t key = 0; key < 30; ++key) keys.push_back(key);
  CHECK(client.upsert(keys, 0) == SPARRING_OK);
  Bytes rows(30 * 8);
  for (int64_t& key : keys) key += 100;
  auto arguments = client.arguments<SparringUpsert>();
  arguments.count = 30;
  arguments.keys = keys.data();
  arguments.rows = rows.data();
  arguments.row_stride = 8;
  arguments.evicted.receive = [](void*, int64_t, const int64_t*, const void*, const uint64_t*) {
    return 1;
  };
  CHECK(client.call(client.get()->upsert, arguments) == SPARRING_INTERNAL);
  CHECK(client.stat().size == 10);
  for (const auto& [key, held] : client.scan()) CHECK(key >= 100);
}

void repeated_keys_do_not_break_the_table() {
  Client client({.row_bytes = 8});
  CHECK(client.upsert({5, 5, 7, 5}, 3) == SPARRING_OK);
  CHECK(client.stat().size == 2 && client.scan().size() == 2);
  CHECK(client.erase({5, 5}) == 1 && client.stat().size == 1);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"version and names are set", version_and_names_are_set},
      {"capabilities follow the options", capabilities_follow_the_options},
      {"invalid arguments are rejected by name", invalid_arguments_are_rejected_by_name},
      {"epoch is parsed strictly", epoch_is_parsed_strictly},
      {"empty calls are ordinary", empty_calls_are_ordinary},
      {"a failing sink is reported and the rows stay evicted",
       a_failing_sink_is_reported_and_the_rows_stay_evicted},
      {"repeated keys do not break the table", repeated_keys_do_not_break_the_table},
  });
}
