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

// Loops of one level; the first three are indexed by stored dtype.
struct RowLoops {
  void (*widen[5])(const WidenArguments&);
  void (*sum[5])(const SumArguments&);
  void (*pool[5])(const PoolArguments&);
  // Returns the index of the first of `count` scores that is >= `bound`, or `count`. NaN never is.
  int64_t (*first_at_least)(const float* scores, int64_t count, float bound);
};

extern const RowLoops kPortableLoops;
#if defined(__x86_64__)
extern const RowLoops kAvx2Loops;
extern const RowLoops kAvx512Loops;
#endif

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_LEVEL_H_
