// Tests calls that process many rows in rounds.
#include <cstdint>
#include <numeric>
#include <string>

#include "check.h"
#include "device_client.h"

namespace {

using namespace sparring::hkv;
using namespace sparring::hkv::testing;
using Evicted = std::vector<std::pair<int64_t, Held>>;

Keys range(int64_t begin, int64_t end) {
  Keys keys(static_cast<size_t>(end - begin));
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

// In an evict with several rounds, rows that were evicted are returned and counted, and the call
// never reports that the table is unchanged.
void rejections_during_an_evict_keep_the_results_of_earlier_rounds() {
  DeviceTableOptions options = device_options(16, -1, PolicyKind::kLru);
  options.round_bytes = 5 * 16;
  int num_partial = 0;
  for (int64_t n = 0;; ++n) {
    CHECK(n < 500);
    DeviceClient client(options);
    CHECK(client.upsert(range(0, 90), 1) == SPARRING_OK);
    Evicted left;
    Sink sink{client.row_bytes(), &left};
    client.set_device(kGpu);
    auto arguments = client.arguments<SparringEvict>();
    arguments.wanted = 10;
    arguments.sink = {&Sink::receive, &sink};
    client.device().refuse_once(n);
    const SparringStatus status = client.call(client.get()->evict, arguments);
    client.device().refuse_once(-1);
    client.set_device({1, 0});
    if (status == SPARRING_DEVICE_LOST) continue;
    CHECK(arguments.evicted == static_cast<int64_t>(left.size()));
    CHECK(client.scan().size() == 90 - left.size());
    CHECK((status == SPARRING_DEVICE_FAILED) == left.empty());
    num_partial += left.size() == 5;
    if (left.size() == 10) break;
  }
  CHECK(num_partial > 0);
}

void a_scan_returns_at_most_as_many_rows_as_can_be_counted() {
  DeviceClient client(device_options(16));
  client.set_device(kGpu);
  CHECK(client.upsert(range(0, 10), 1) == SPARRING_OK);
  Keys keys(10);
  for (const int64_t capacity : {int64_t{1} << 31, int64_t{1} << 62}) {
    auto arguments = client.arguments<SparringScan>();
    arguments.capacity = capacity;
    arguments.columns = {0, 16};
    arguments.keys = keys.data();
    CHECK(client.call(client.get()->scan, arguments) == SPARRING_INVALID_ARGUMENT);
    CHECK(client.message().find("2147483647") != std::string::npos);
    CHECK(client.message().find(std::to_string(capacity)) != std::string::npos);
    CHECK(arguments.count == 0);
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"rejections during an evict keep the results of earlier rounds",
       rejections_during_an_evict_keep_the_results_of_earlier_rounds},
      {"a scan returns at most as many rows as can be counted",
       a_scan_returns_at_most_as_many_rows_as_can_be_counted},
  });
}
