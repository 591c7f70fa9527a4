#include "layout.h"

#include <string>

#include "check.h"
#include "client.h"
#include "sparring/storage_border.h"

using namespace sparring::hkv;
using namespace sparring::hkv::testing;

namespace {

bool is_refused(const TableOptions& options, const std::string& word) {
  try {
    make_layout(options, 1000);
  } catch (const sparring::border::StatusError& error) {
    return std::string(error.what()).find(word) != std::string::npos;
  }
  return false;
}

void options_out_of_range_are_rejected() {
  CHECK(is_refused({.row_bytes = 0}, "row_bytes"));
  CHECK(is_refused({.row_bytes = 4, .capacity = 0}, "capacity"));
  CHECK(is_refused({.row_bytes = 4, .capacity = -2}, "capacity"));
  CHECK(is_refused({.row_bytes = 4, .memory_bytes = 500}, "memory_bytes"));
}

void buckets_are_80_percent_full_at_capacity() {
  const Layout layout =
      make_layout({.row_bytes = 4, .capacity = 48'000, .policy = PolicyKind::kLru}, 0);
  CHECK(layout.num_fixed_buckets == 1000 && layout.max_buckets == 1000);
  CHECK(layout.max_rows == 48'000 && layout.is_bounded);
}

void the_tighter_limit_applies() {
  TableOptions options{.row_bytes = 256, .capacity = 100, .memory_bytes = 1 << 30};
  CHECK(make_layout(options, 0).max_rows == 100);
  options.memory_bytes = 40'000;
  options.capacity = 1'000'000;
  CHECK(make_layout(options, 0).max_rows < 150);
}

// A test cannot fill 2^32 rows, so the message for that case is requested directly.
void a_table_without_a_limit_reports_what_limits_it() {
  for (const PolicyKind policy : {PolicyKind::kNone, PolicyKind::kLru}) {
    const Layout unbounded = make_layout({.row_bytes = 4, .policy = policy}, 0);
    CHECK(unbounded.max_rows == 4'294'967'295);
    CHECK(remedy_when_full(unbounded).find("more ranks") != std::string::npos);
    CHECK(remedy_when_full(unbounded).find("policy is none") == std::string::npos);
  }
  const Layout bounded = make_layout({.row_bytes = 4, .capacity = 7}, 0);
  CHECK(remedy_when_full(bounded).find("raise its capacity") != std::string::npos);
}

// For all sizes of tables, row sizes and policies: the memory limit is never
// exceeded, and most of it is used.
void the_memory_limit_is_kept_and_used() {
  for (const PolicyKind policy : {PolicyKind::kNone, PolicyKind::kLru}) {
    for (const uint64_t row_bytes : {uint64_t{4}, uint64_t{100}, uint64_t{5000}}) {
      for (const uint64_t memory : {uint64_t{60'000}, uint64_t{5'000'000}}) {
        Client client({.row_bytes = row_bytes, .memory_bytes = memory, .policy = policy});
        const SparringStat empty = client.stat();
        CHECK(empty.memory_bytes <= memory);
        int64_t next = 0;
        SparringStatus status = SPARRING_OK;
        while (status == SPARRING_OK && next < 2 * empty.capacity + 10) {
          Keys keys;
          const int64_t size = policy == PolicyKind::kNone && next < empty.capacity
                                   ? std::min<int64_t>(999, empty.capacity - next)
                                   : 999;
          for (int64_t i = 0; i < size; ++i) keys.push_back(next++);
          status = client.upsert(keys, 0);
          CHECK(client.stat().memory_bytes <= memory);
        }
        CHECK(status == (policy == PolicyKind::kNone ? SPARRING_CAPACITY : SPARRING_OK));
        const SparringStat full = client.stat();
        CHECK(full.size <= full.capacity);
        CHECK(full.size >= full.capacity * 9 / 10);
        if (policy == PolicyKind::kLru && memory > 1'000'000) {
          CHECK(full.memory_bytes >= memory * 9 / 10);
        }
      }
    }
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"options out of range are rejected", options_out_of_range_are_rejected},
      {"buckets are 80 percent full at capacity", buckets_are_80_percent_full_at_capacity},
      {"the tighter limit applies", the_tighter_limit_applies},
      {"a table without a limit reports what limits it", a_table_without_a_limit_reports_what_limits_it},
      {"the memory limit is kept and used", the_memory_limit_is_kept_and_used},
  });
}
