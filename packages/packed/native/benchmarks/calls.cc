// Measures one call over many tables, compared with the same number of prefetched row reads:
//
//   calls FOLDER NUM_ROWS
//
// It prints "ready", and for each line with a number of ids the medians of both, in µs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "sparring_packed.h"

namespace {

constexpr int kBatches = 64;
constexpr int kRounds = 40;

template <class Arguments>
Arguments new_arguments() {
  Arguments arguments{};
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device.type = 1;
  return arguments;
}

void check(SparringStatus status, const SparringCall& call) {
  if (status == SPARRING_OK) return;
  std::fprintf(stderr, "%s\n", call.error.message);
  std::exit(1);
}

template <class Body>
double micros(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int, char** words) {
  auto open = new_arguments<SparringPackedOpen>();
  open.path = words[1];
  check(sparring_packed_open(&open), open.call);
  const int64_t num_rows = std::atoll(words[2]);
  auto version = new_arguments<SparringPackedVersion>();
  check(sparring_packed_version(open.packed, &version), version.call);
  auto table = new_arguments<SparringPackedTable>();
  check(sparring_packed_table(open.packed, &table), table.call);
  const auto num_tables = static_cast<size_t>(version.num_tables);
  const auto dim = static_cast<size_t>(table.dim);
  // The same number of plain rows in memory, without a directory.
  std::vector<float> plain(num_tables * static_cast<size_t>(num_rows) * dim, 1.0f);
  std::mt19937_64 random(1);
  std::puts("ready");
  std::fflush(stdout);
  size_t num_ids = 0;
  while (std::scanf("%zu", &num_ids) == 1) {
    std::vector<int64_t> ids(kBatches * num_tables * num_ids);
    for (int64_t& id : ids) id = static_cast<int64_t>(random() % static_cast<uint64_t>(num_rows));
    std::vector<float> rows(num_tables * num_ids * dim);
    std::vector<SparringPackedRequest> requests(num_tables);
    auto lookup = new_arguments<SparringPackedLookup>();
    lookup.num_requests = version.num_tables;
    lookup.requests = requests.data();
    std::vector<double> ours;
    std::vector<double> reads;
    for (int round = 0; round < kRounds * kBatches; ++round) {
      const int64_t* const batch =
          ids.data() + static_cast<size_t>(round % kBatches) * num_tables * num_ids;
      for (size_t i = 0; i < num_tables; ++i) {
        requests[i].table = static_cast<int32_t>(i);
        requests[i].count = static_cast<int64_t>(num_ids);
        requests[i].ids = batch + i * num_ids;
        requests[i].rows = rows.data() + i * num_ids * dim;
      }
      ours.push_back(micros([&] { check(sparring_packed_lookup(open.packed, &lookup), lookup.call); }));
      const auto row_of = [&](size_t i) {
        return plain.data() +
               (i / num_ids * static_cast<size_t>(num_rows) + static_cast<size_t>(batch[i])) * dim;
      };
      reads.push_back(micros([&] {
        constexpr size_t kAhead = 32;
        const size_t count = num_tables * num_ids;
        for (size_t i = 0; i < count + kAhead; ++i) {
          if (i < count) {
            for (size_t at = 0; at < dim; at += 16) __builtin_prefetch(row_of(i) + at);
          }
          if (i >= kAhead) {
            std::memcpy(rows.data() + (i - kAhead) * dim, row_of(i - kAhead), dim * sizeof(float));
          }
        }
      }));
    }
    std::printf("%.4f %.4f\n", median(ours), median(reads));
    std::fflush(stdout);
  }
  sparring_packed_close(open.packed);
  return 0;
}
