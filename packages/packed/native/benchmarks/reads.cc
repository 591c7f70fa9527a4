// Measures the limit of lookups on this machine: only reads of random rows, one word per cache line,
// without hashes, comparisons and sums.
//
//   reads NUM_ROWS DIM NUM_IDS
//
// It prints "ready", and for each line the medians, in µs, of two ways to read a batch of ids:
// dense rows, found by index; and a line of a directory, then a record that starts with its key.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int kBatches = 6;
constexpr int kRounds = 15;
constexpr size_t kAhead = 24;
constexpr size_t kLine = 64;

// Allocated until the program ends, in pages of 2 MiB if the system supports them.
const uint8_t* filled(size_t bytes) {
  constexpr size_t kHuge = 2 << 20;
  bytes = (bytes + kHuge - 1) / kHuge * kHuge;
  void* const data = std::aligned_alloc(kHuge, bytes);
  if (data == nullptr) std::exit(1);
  madvise(data, bytes, MADV_HUGEPAGE);
  std::fill_n(static_cast<uint8_t*>(data), bytes, uint8_t{1});
  return static_cast<const uint8_t*>(data);
}

template <class Body>
void for_lines(const uint8_t* begin, size_t bytes, const Body& body) {
  const auto first = reinterpret_cast<uintptr_t>(begin) / kLine * kLine;
  for (uintptr_t at = first; at < reinterpret_cast<uintptr_t>(begin) + bytes; at += kLine) {
    body(reinterpret_cast<const uint8_t*>(at));
  }
}

void prefetch(const uint8_t* begin, size_t bytes) {
  for_lines(begin, bytes, [](const uint8_t* line) { __builtin_prefetch(line); });
}

uint64_t read(const uint8_t* begin, size_t bytes) {
  uint64_t sum = 0;
  for_lines(begin, bytes, [&](const uint8_t* line) { sum += *reinterpret_cast<const uint64_t*>(line); });
  return sum;
}

uint64_t sum_of_all = 0;  // used, so that the compiler does not remove the reads

template <class Body>
double micros(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  sum_of_all += body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int, char** words) {
  const size_t num_rows = std::strtoull(words[1], nullptr, 10);
  const size_t row_bytes = 4 * std::strtoull(words[2], nullptr, 10);
  const size_t num_ids = std::strtoull(words[3], nullptr, 10);
  const size_t record_bytes = 8 + row_bytes;
  const size_t num_buckets = num_rows / 16 + 1;
  const uint8_t* const rows = filled(num_rows * row_bytes);
  const uint8_t* const directory = filled(num_buckets * kLine);
  const uint8_t* const records = filled(num_rows * record_bytes);
  std::mt19937_64 random(1);
  std::vector<size_t> places(kBatches * num_ids);
  for (size_t& place : places) place = random() % num_rows;
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() == '\n') {
    std::vector<double> dense;
    std::vector<double> hashed;
    for (int round = 0; round < kRounds * kBatches; ++round) {
      const size_t* const batch = places.data() + static_cast<size_t>(round % kBatches) * num_ids;
      dense.push_back(micros([&] {
        uint64_t sum = 0;
        for (size_t i = 0; i < num_ids + kAhead; ++i) {
          if (i < num_ids) prefetch(rows + batch[i] * row_bytes, row_bytes);
          if (i >= kAhead) sum += read(rows + batch[i - kAhead] * row_bytes, row_bytes);
        }
        return sum;
      }));
      hashed.push_back(micros([&] {
        uint64_t sum = 0;
        for (size_t i = 0; i < num_ids + 2 * kAhead; ++i) {
          if (i < num_ids) prefetch(directory + (batch[i] >> 4) * kLine, kLine);
          if (i >= kAhead && i < num_ids + kAhead) {
            const size_t place = batch[i - kAhead];
            sum += read(directory + (place >> 4) * kLine, kLine);
            prefetch(records + place * record_bytes, record_bytes);
          }
          if (i >= 2 * kAhead) sum += read(records + batch[i - 2 * kAhead] * record_bytes, record_bytes);
        }
        return sum;
      }));
    }
    std::printf("%.3f %.3f\n", median(dense), median(hashed));
    std::fflush(stdout);
  }
  return sum_of_all == 0;
}
