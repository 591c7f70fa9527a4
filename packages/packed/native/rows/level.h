// The loops over rows, compiled once for each SIMD level.
//
// `level_portable.cc`, `level_avx2.cc` and `level_avx512.cc` compile the same text,
// `level_rows.inc`, with different flags and vector lengths; `simd.h` selects one of them.
//
// INVARIANTS
//   1. All levels give the same bits: each element is computed separately, in the order of
//      ids; multiplications are fused with additions only by `fused`, and never by the
//      compiler (-ffp-contract=off).
//   2. These files include no header with inline functions of the standard library: the
//      linker keeps one copy of each, which could be the one for a newer CPU.
//   3. Pointers are not checked. Rows are never read beyond their end.
#ifndef SPARRING_PACKED_ROWS_LEVEL_H_
#define SPARRING_PACKED_ROWS_LEVEL_H_

#include <cstdint>

namespace sparring::packed {

struct WidenArguments {
  const void* const* rows;  // (count) stored rows; none NULL
  int64_t count;
  int64_t dim;
  float* out;               // (count, stride)
  int64_t stride;           // elements
  bool is_streamed;         // bypasses the caches; out and stride are multiples of 64 bytes
};

struct SumArguments {
  const void* const* rows;  // (count) stored rows; none NULL
  const float* weights;     // (count), or NULL if all are 1
  int64_t count;
  int64_t dim;
  float* out;               // (dim): in, out
};

// Sums of consecutive bags.
struct PoolArguments {
  const void* const* rows;  // (offsets[count] - offsets[0]) stored rows; none NULL
  const int64_t* offsets;   // (count + 1)
  int64_t count;
  int64_t dim;
  float* out;               // (count, stride)
  int64_t stride;           // elements
};

// Dot products of a tile of queries and a tile of rows.
struct TileArguments {
  const float* queries;  // (dim, tile_queries)
  const float* rows;     // (dim, tile_rows)
  const float* starts;   // (tile_rows): added to the products of a row
  const float* bounds;   // (tile_queries)
  int64_t dim;
  uint32_t* hits;        // out (tile_queries): bit i is set if the score of row i reaches the bound
  float* scores;         // out (tile_queries, tile_rows): only those of queries with hits
};

constexpr int64_t kMaxTileQueries = 12;
constexpr int64_t kMaxTileRows = 32;

// Loops of one level; the first three are indexed by stored dtype.
struct RowLoops {
  void (*widen[5])(const WidenArguments&);
  void (*sum[5])(const SumArguments&);
  void (*pool[5])(const PoolArguments&);
  // Returns whether any score reaches the bound of its query; if none does, nothing is written. A score
  // is the sum of its start and its products in the order of elements, each fused.
  bool (*multiply)(const TileArguments&);
  int64_t tile_queries;  // at most kMaxTileQueries
  int64_t tile_rows;     // at most kMaxTileRows
};

extern const RowLoops kPortableLoops;
#if defined(__x86_64__)
extern const RowLoops kAvx2Loops;
extern const RowLoops kAvx512Loops;
#endif

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_LEVEL_H_
