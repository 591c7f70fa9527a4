// Multiplies a block of rows with queries, in registers: 4 queries times 16 rows.
#include <algorithm>
#include <cstring>
#include <vector>

#include "server/recommend.h"

namespace sparring::serve {

namespace {

typedef float Vector __attribute__((vector_size(32)));

constexpr int64_t kLanes = 8;
constexpr int64_t kTileRows = 2 * kLanes;
constexpr int64_t kTileQueries = 4;

// Code for the CPU's vectors is selected when the program starts, which sanitizers do not support.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SPARRING_CLONES __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define SPARRING_CLONES
#endif

// Products of one tile: `columns` (dim, 16) and 4 queries.
SPARRING_CLONES void multiply_tile(const float* columns, const float* const* queries, int64_t dim,
                                   float* out) {
  Vector sums[kTileQueries][2] = {};
  for (int64_t d = 0; d < dim; ++d) {
    Vector left, right;
    std::memcpy(&left, columns + d * kTileRows, sizeof left);
    std::memcpy(&right, columns + d * kTileRows + kLanes, sizeof right);
    for (int64_t q = 0; q < kTileQueries; ++q) {
      sums[q][0] += queries[q][d] * left;
      sums[q][1] += queries[q][d] * right;
    }
  }
  std::memcpy(out, sums, sizeof sums);
}

}  // namespace

void dot_products(const float* queries, int64_t num_queries, const float* rows, int64_t num_rows,
                  int64_t dim, float* scores) {
  std::vector<float> columns(static_cast<size_t>(dim * kTileRows));
  float out[kTileQueries * kTileRows];
  for (int64_t n = 0; n < num_rows; n += kTileRows) {
    const int64_t count = std::min(kTileRows, num_rows - n);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t d = 0; d < dim; ++d) columns[static_cast<size_t>(d * kTileRows + i)] = rows[(n + i) * dim + d];
    }
    for (int64_t q = 0; q < num_queries; q += kTileQueries) {
      const int64_t num = std::min(kTileQueries, num_queries - q);
      const float* tile[kTileQueries];
      for (int64_t i = 0; i < kTileQueries; ++i) tile[i] = queries + (q + std::min(i, num - 1)) * dim;
      multiply_tile(columns.data(), tile, dim, out);
      for (int64_t i = 0; i < num; ++i) {
        std::copy_n(out + i * kTileRows, count, scores + (q + i) * num_rows + n);
      }
    }
  }
}

}  // namespace sparring::serve
