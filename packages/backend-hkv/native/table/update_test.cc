// Tests visits and updates of rows in place.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "client.h"
#include "colliding_keys.h"
#include "thread_executor.h"

using namespace sparring::hkv;
using namespace sparring::hkv::testing;

namespace {

constexpr uint64_t kRowBytes = 20;

struct Shown {
  Client* client;
  const Keys* keys;
  int64_t expected_begin = 0;
  std::vector<Bytes> rows{};  // empty if the key has no row
  int64_t fails_at = -1;

  static int32_t show(void* context, int64_t begin, int64_t count, const void* const* rows) {
    auto& shown = *static_cast<Shown*>(context);
    CHECK(begin == shown.expected_begin);
    shown.expected_begin += count;
    if (shown.fails_at >= 0 && begin + count > shown.fails_at) return 7;
    for (int64_t i = 0; i < count; ++i) {
      const auto* bytes = static_cast<const char*>(rows[i]);
      shown.rows.push_back(bytes == nullptr ? Bytes() : Bytes(bytes, bytes + kRowBytes - 4));
    }
    return 0;
  }
};

SparringStatus visit(Client& client, const Keys& keys, Shown& shown) {
  auto arguments = client.arguments<SparringVisit>();
  arguments.count = static_cast<int64_t>(keys.size());
  arguments.keys = keys.data();
  arguments.columns = {4, kRowBytes};
  arguments.show = &Shown::show;
  arguments.context = &shown;
  return client.call(client.get()->visit, arguments);
}

void a_visit_shows_rows_in_order_and_keys_may_repeat() {
  for (const Kernels* kernels : available_kernels()) {
    for (const int64_t capacity : {int64_t{-1}, int64_t{5000}}) {
      Client client({.row_bytes = kRowBytes, .capacity = capacity, .policy = PolicyKind::kLru},
                    nullptr, kernels);
      Keys known = {0, -1, INT64_MIN, INT64_MAX};
      for (int64_t key = 10; key < 900; ++key) known.push_back(key * 3);
      CHECK(client.upsert(known, 1) == SPARRING_OK);
      const std::set<int64_t> has(known.begin(), known.end());
      std::mt19937_64 random(3);
      for (const size_t count : {size_t{0}, size_t{1}, size_t{31}, size_t{32}, size_t{33},
                                 size_t{97}, size_t{2000}}) {
        Keys asked;
        for (size_t i = 0; i < count; ++i) {
          asked.push_back(random() % 3 == 0 ? static_cast<int64_t>(random() % 3000)
                                            : known[random() % known.size()]);
        }
        Shown shown{&client, &asked};
        CHECK(visit(client, asked, shown) == SPARRING_OK);
        CHECK(shown.rows.size() == count);
        for (size_t i = 0; i < count; ++i) {
          Bytes expected;
          if (has.contains(asked[i])) {
            const Bytes row = make_row(asked[i], 1, kRowBytes);
            expected.assign(row.begin() + 4, row.end());
          }
          CHECK(shown.rows[i] == expected);
        }
      }
      Shown failing{&client, &known};
      failing.fails_at = 100;
      CHECK(visit(client, known, failing) == SPARRING_INTERNAL);
      CHECK(failing.expected_begin < 200);
    }
  }
}

// Increments the first word of each row; admits keys by their lowest bit.
struct Changer {
  const Keys* keys = nullptr;
  bool admits_odd_only = false;
  bool fails = false;
  std::vector<std::atomic<int>>* visits = nullptr;
  std::atomic<int64_t> num_new{0};

  static int32_t admit(void* context, int64_t count, const int64_t* positions, uint8_t* answers) {
    auto& changer = *static_cast<Changer*>(context);
    for (int64_t i = 0; i < count; ++i) {
      CHECK(i == 0 || positions[i - 1] < positions[i]);
      const int64_t key = (*changer.keys)[static_cast<size_t>(positions[i])];
      answers[i] = !changer.admits_odd_only || (key & 1) != 0;
    }
    return changer.fails ? 1 : 0;
  }

  static void change(void* context, int64_t count, const int64_t* positions, void* const* rows,
                     const uint8_t* is_new) {
    auto& changer = *static_cast<Changer*>(context);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t key = (*changer.keys)[static_cast<size_t>(positions[i])];
      (*changer.visits)[static_cast<size_t>(positions[i])].fetch_add(1);
      auto* row = static_cast<char*>(rows[i]);
      if (is_new[i] != 0) {
        const Bytes made = make_row(key, 0, kRowBytes);
        std::memcpy(row, made.data(), kRowBytes);
        changer.num_new.fetch_add(1);
      }
      row[0] = static_cast<char>(row[0] + 1);
    }
  }
};

SparringStatus update(Client& client, const Keys& keys, Changer& changer, int64_t& inserted,
                      std::vector<std::pair<int64_t, Held>>* evicted = nullptr) {
  std::vector<std::atomic<int>> visits(keys.size());
  changer.keys = &keys;
  changer.visits = &visits;
  changer.num_new = 0;
  auto arguments = client.arguments<SparringUpdate>();
  arguments.count = static_cast<int64_t>(keys.size());
  arguments.keys = keys.data();
  arguments.admit = &Changer::admit;
  arguments.change = &Changer::change;
  arguments.context = &changer;
  Sink sink{kRowBytes, evicted};
  if (evicted != nullptr) arguments.evicted = {&Sink::receive, &sink};
  const SparringStatus status = client.call(client.get()->update, arguments);
  inserted = arguments.inserted;
  for (const auto& count : visits) CHECK(count.load() <= 1);
  return status;
}

Keys distinct_keys(std::mt19937_64& random, size_t count, uint64_t range) {
  std::set<int64_t> keys;
  while (keys.size() < count) keys.insert(static_cast<int64_t>(random() % range));
  Keys shuffled(keys.begin(), keys.end());
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  return shuffled;
}

void an_update_changes_known_rows_and_inserts_admitted_ones() {
  sparring::testing::ThreadExecutor executor(3);
  for (const SparringExecutor* lent : {static_cast<const SparringExecutor*>(nullptr),
                                       executor.get()}) {
    for (const bool admits_odd_only : {false, true}) {
      Client client({.row_bytes = kRowBytes}, lent);
      std::map<int64_t, char> oracle;
      std::mt19937_64 random(9);
      for (int round = 0; round < 30; ++round) {
        const Keys keys = distinct_keys(random, 1 + random() % 3000, 20'000);
        Changer changer{.admits_odd_only = admits_odd_only};
        int64_t inserted = -1;
        int64_t expected = 0;
        for (const int64_t key : keys) {
          if (!oracle.contains(key)) {
            if (admits_odd_only && (key & 1) == 0) continue;
            oracle[key] = make_row(key, 0, kRowBytes)[0];
            ++expected;
          }
          oracle[key] = static_cast<char>(oracle[key] + 1);
        }
        CHECK(update(client, keys, changer, inserted) == SPARRING_OK);
        CHECK(inserted == expected && changer.num_new == expected);
      }
      Keys all;
      for (int64_t key = 0; key < 20'000; ++key) all.push_back(key);
      const std::vector<Bytes> rows = client.find(all);
      for (const int64_t key : all) {
        const Bytes& row = rows[static_cast<size_t>(key)];
        CHECK(row.empty() == !oracle.contains(key));
        if (row.empty()) continue;
        Bytes expected = make_row(key, 0, kRowBytes);
        expected[0] = oracle[key];
        CHECK(row == expected);
      }
    }
  }
}

void an_update_that_fails_changes_nothing() {
  Client client({.row_bytes = kRowBytes, .capacity = 100});
  Keys keys;
  for (int64_t key = 0; key < 90; ++key) keys.push_back(key);
  Changer changer;
  int64_t inserted = 0;
  CHECK(update(client, keys, changer, inserted) == SPARRING_OK);
  const std::vector<Bytes> before = client.find(keys);
  Keys more = keys;
  for (int64_t key = 1000; key < 1011; ++key) more.push_back(key);
  CHECK(update(client, more, changer, inserted) == SPARRING_CAPACITY);
  CHECK(client.message().find("update of 101 keys, 11 of them new") != std::string::npos);
  more.resize(95);
  changer.fails = true;
  CHECK(update(client, more, changer, inserted) == SPARRING_INTERNAL);
  CHECK(client.find(keys) == before);
  CHECK(client.find({1000})[0].empty());
}

// Rows, scores and evictions are as after find, change and upsert.
void an_update_evicts_like_an_upsert() {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kLfu}) {
    const TableOptions options{.row_bytes = kRowBytes, .capacity = 2000, .policy = policy};
    Client updated(options);
    Client upserted(options);
    std::mt19937_64 random(17);
    for (int round = 0; round < 40; ++round) {
      const Keys keys = distinct_keys(random, 400, 6000);
      Changer changer;
      int64_t inserted = 0;
      std::vector<std::pair<int64_t, Held>> left;
      CHECK(update(updated, keys, changer, inserted, &left) == SPARRING_OK);

      std::vector<Bytes> rows = upserted.find(keys);
      Bytes joined;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (rows[i].empty()) rows[i] = make_row(keys[i], 0, kRowBytes);
        rows[i][0] = static_cast<char>(rows[i][0] + 1);
        joined.insert(joined.end(), rows[i].begin(), rows[i].end());
      }
      auto arguments = upserted.arguments<SparringUpsert>();
      arguments.count = static_cast<int64_t>(keys.size());
      arguments.keys = keys.data();
      arguments.rows = joined.data();
      arguments.row_stride = kRowBytes;
      std::vector<std::pair<int64_t, Held>> expected;
      Sink sink{kRowBytes, &expected};
      arguments.evicted = {&Sink::receive, &sink};
      CHECK(upserted.call(upserted.get()->upsert, arguments) == SPARRING_OK);
      CHECK(left == expected);
      CHECK(updated.scan() == upserted.scan());
    }
  }
}

// Handles of keys, as returned by a visit.
struct Handles {
  std::vector<const void*> rows{};
  uint64_t generation = 0;

  static int32_t show(void* context, int64_t, int64_t count, const void* const* rows) {
    auto& self = *static_cast<Handles*>(context);
    self.rows.insert(self.rows.end(), rows, rows + count);
    return 0;
  }

  static Handles of(Client& client, const Keys& keys) {
    Handles handles;
    auto arguments = client.arguments<SparringVisit>();
    arguments.count = static_cast<int64_t>(keys.size());
    arguments.keys = keys.data();
    arguments.show = &Handles::show;
    arguments.context = &handles;
    CHECK(client.call(client.get()->visit, arguments) == SPARRING_OK);
    handles.generation = arguments.generation;
    return handles;
  }
};

// Returns the bytes that a visit by handles shows, from byte 4 on.
std::vector<Bytes> shown_by(Client& client, const Keys& keys, const Handles& handles) {
  Shown shown{&client, &keys};
  auto arguments = client.arguments<SparringVisit>();
  arguments.count = static_cast<int64_t>(keys.size());
  arguments.keys = keys.data();
  arguments.columns = {4, kRowBytes};
  arguments.show = &Shown::show;
  arguments.context = &shown;
  arguments.handles = handles.rows.data();
  arguments.generation = handles.generation;
  CHECK(client.call(client.get()->visit, arguments) == SPARRING_OK);
  return shown.rows;
}

std::vector<Bytes> shown_without(Client& client, const Keys& keys) {
  Shown shown{&client, &keys};
  CHECK(visit(client, keys, shown) == SPARRING_OK);
  return shown.rows;
}

void handles_save_the_search_until_a_row_is_removed() {
  const Keys keys = {5, 100, -1, 7, 5};
  const auto make = [&] {
    auto client = std::make_unique<Client>(
        TableOptions{.row_bytes = kRowBytes, .capacity = 120, .policy = PolicyKind::kLru});
    CHECK(client->upsert({5, 7, -1, 8}, 1) == SPARRING_OK);
    return client;
  };
  {
    auto client = make();
    const Handles handles = Handles::of(*client, keys);
    CHECK(handles.generation != 0);
    CHECK(handles.rows[0] == handles.rows[4] && handles.rows[1] == nullptr && handles.rows[3]);
    CHECK(shown_by(*client, keys, handles) == shown_without(*client, keys));
    // The row of the handle is shown, even if it is the row of another key.
    CHECK(shown_by(*client, {7}, {{handles.rows[0]}, handles.generation})[0] ==
          shown_without(*client, {5})[0]);
    // Writes to existing rows, and new rows, do not invalidate handles.
    CHECK(client->upsert({5, 900}, 2) == SPARRING_OK);
    CHECK(Handles::of(*client, keys).generation == handles.generation);
    CHECK(shown_by(*client, keys, handles) == shown_without(*client, keys));
  }
  using Leave = void (*)(Client&);
  const Leave leavers[] = {
      [](Client& client) { CHECK(client.erase({5}) == 1); },
      [](Client& client) {
        SparringPlain arguments = client.arguments<SparringPlain>();
        CHECK(client.call(client.get()->clear, arguments) == SPARRING_OK);
      },
      [](Client& client) {
        auto arguments = client.arguments<SparringEvict>();
        arguments.wanted = 2;
        CHECK(client.call(client.get()->evict, arguments) == SPARRING_OK);
      },
      [](Client& client) {
        Keys many;
        for (int64_t key = 1000; key < 1400; ++key) many.push_back(key);
        CHECK(client.upsert(many, 3) == SPARRING_OK);
      },
  };
  for (const Leave leave : leavers) {
    auto client = make();
    const Handles handles = Handles::of(*client, keys);
    leave(*client);
    CHECK(Handles::of(*client, keys).generation != handles.generation);
    CHECK(shown_by(*client, keys, handles) == shown_without(*client, keys));
  }
  auto one = make();
  auto another = make();
  CHECK(Handles::of(*one, keys).generation != Handles::of(*another, keys).generation);
}

SparringStatus update_by(Client& client, const Keys& keys, Changer& changer,
                         const Handles& handles, int64_t& inserted) {
  std::vector<std::atomic<int>> visits(keys.size());
  changer.keys = &keys;
  changer.visits = &visits;
  auto arguments = client.arguments<SparringUpdate>();
  arguments.count = static_cast<int64_t>(keys.size());
  arguments.keys = keys.data();
  arguments.admit = &Changer::admit;
  arguments.change = &Changer::change;
  arguments.context = &changer;
  arguments.handles = handles.rows.data();
  arguments.generation = handles.generation;
  const SparringStatus status = client.call(client.get()->update, arguments);
  inserted = arguments.inserted;
  return status;
}

void an_update_with_handles_equals_one_without() {
  for (const int64_t capacity : {int64_t{-1}, int64_t{500}}) {
    const auto policy = capacity < 0 ? PolicyKind::kNone : PolicyKind::kLru;
    const TableOptions options{.row_bytes = kRowBytes, .capacity = capacity, .policy = policy};
    Client plain(options);
    Client handled(options);
    std::mt19937_64 random(17);
    Keys waiting;
    Handles early;  // from an earlier round: keys may have been inserted or evicted since
    for (int round = 0; round < 60; ++round) {
      const Keys next = distinct_keys(random, 1 + random() % 200, 900);
      Handles of_next = Handles::of(handled, next);
      if (!waiting.empty()) {
        Changer changer{.admits_odd_only = round % 3 == 0};
        Changer same{.admits_odd_only = round % 3 == 0};
        int64_t inserted = -1;
        int64_t expected = -1;
        CHECK(update_by(handled, waiting, changer, early, inserted) == SPARRING_OK);
        CHECK(update(plain, waiting, same, expected) == SPARRING_OK);
        CHECK(inserted == expected && changer.num_new == same.num_new);
        CHECK(handled.scan() == plain.scan());
      }
      if (round % 7 == 6) {
        const Keys gone = distinct_keys(random, 20, 900);
        CHECK(plain.erase(gone) == handled.erase(gone));
      }
      waiting = next;
      early = std::move(of_next);
    }
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"a visit shows rows in order and keys may repeat",
       a_visit_shows_rows_in_order_and_keys_may_repeat},
      {"an update changes known rows and inserts admitted ones",
       an_update_changes_known_rows_and_inserts_admitted_ones},
      {"an update that fails changes nothing", an_update_that_fails_changes_nothing},
      {"an update evicts like an upsert", an_update_evicts_like_an_upsert},
      {"handles save the search until a row is removed", handles_save_the_search_until_a_row_is_removed},
      {"an update with handles equals one without", an_update_with_handles_equals_one_without},
  });
}
