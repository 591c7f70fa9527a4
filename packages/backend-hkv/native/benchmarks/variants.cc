// Measures one build of the table on one thread. benchmarks/techniques.py alternates between
// several builds. After "ready", each line of standard input names a workload; the reply is the
// time per key in nanoseconds.
//
//   variants ROWS ROW_BYTES KEYS
//
// visit         reads the rows of KEYS random keys, as pooling does
// update        reads and writes them, including the state
// update_apart  the same, with the last 4 bytes of each row in a separate table
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"
#include "policy.h"
#include "table.h"

using namespace sparring::hkv;

namespace {

constexpr uint64_t kStateBytes = 4;
using Keys = std::vector<int64_t>;

std::unique_ptr<Table> filled(const Keys& all, uint64_t row_bytes) {
  auto table = std::make_unique<Table>(
      TableOptions{.row_bytes = row_bytes, .capacity = -1, .policy = PolicyKind::kNone});
  constexpr size_t kSome = 8192;
  const std::vector<char> rows(kSome * row_bytes, 1);
  for (size_t at = 0; at < all.size(); at += kSome) {
    SparringUpsert call{};
    call.count = static_cast<int64_t>(std::min(kSome, all.size() - at));
    call.keys = all.data() + at;
    call.rows = rows.data();
    call.row_stride = row_bytes;
    table->upsert(call);
  }
  return table;
}

void visit(Table& table, const Keys& keys, uint64_t bytes) {
  struct Sum {
    uint64_t num_floats;
    float sums[64] = {};
  } sum{bytes / sizeof(float)};
  SparringVisit call{};
  call.count = static_cast<int64_t>(keys.size());
  call.keys = keys.data();
  call.columns = {0, bytes};
  call.context = &sum;
  call.show = [](void* context, int64_t, int64_t count, const void* const* rows) -> int32_t {
    auto& self = *static_cast<Sum*>(context);
    for (int64_t i = 0; i < count; ++i) {
      const auto* row = static_cast<const float*>(rows[i]);
      for (uint64_t k = 0; k < self.num_floats; ++k) self.sums[k % 64] += row[k];
    }
    return 0;
  };
  table.visit(call);
  volatile float sink = sum.sums[0];
  static_cast<void>(sink);
}

void update(Table& table, const Keys& keys) {
  uint64_t num_floats = table.row_bytes() / sizeof(float);
  SparringUpdate call{};
  call.count = static_cast<int64_t>(keys.size());
  call.keys = keys.data();
  call.context = &num_floats;
  call.change = [](void* context, int64_t count, const int64_t*, void* const* rows,
                   const uint8_t*) {
    const uint64_t n = *static_cast<const uint64_t*>(context);
    for (int64_t i = 0; i < count; ++i) {
      auto* row = static_cast<float*>(rows[i]);
      for (uint64_t k = 0; k < n; ++k) row[k] += 0.5f;
    }
  };
  table.update(call);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: variants ROWS ROW_BYTES KEYS\n";
    return 2;
  }
  const auto num_rows = std::stoull(argv[1]);
  const auto row_bytes = std::stoull(argv[2]);
  const auto num_keys = std::stoull(argv[3]);
  Keys all(num_rows);
  std::iota(all.begin(), all.end(), int64_t{0});
  std::mt19937_64 random(7);
  std::shuffle(all.begin(), all.end(), random);
  const auto whole = filled(all, row_bytes);
  const auto embeddings = filled(all, row_bytes - kStateBytes);
  const auto states = filled(all, kStateBytes);

  std::cout << "ready" << std::endl;
  std::string work;
  Keys keys(num_keys);
  while (std::getline(std::cin, work)) {
    // Keys of one update must be distinct, so a random range of a shuffled list is used.
    const size_t begin = random() % (num_rows - num_keys);
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(begin), num_keys, keys.begin());
    std::shuffle(keys.begin(), keys.end(), random);
    const auto start = std::chrono::steady_clock::now();
    if (work == "visit") {
      visit(*whole, keys, row_bytes - kStateBytes);
    } else if (work == "update") {
      update(*whole, keys);
    } else if (work == "update_apart") {
      update(*embeddings, keys);
      update(*states, keys);
    } else {
      std::cerr << "unknown workload " << work << "\n";
      return 2;
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    std::cout << time.count() / static_cast<double>(num_keys) << std::endl;
  }
}
