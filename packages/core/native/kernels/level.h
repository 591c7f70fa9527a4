// The loops that are compiled once per SIMD level, and their arguments.
//
// `level_portable.cc`, `level_avx2.cc` and `level_avx512.cc` compile the same source
// (`level_*.inc`) with different compiler flags and vector lengths. `simd.h` selects one
// at run time.
//
// INVARIANTS
//   1. All levels compute the same bits. Every sum has a fixed order that does not
//      depend on the vector length. Only `multiply_add` fuses multiplications and
//      additions, never the compiler (-ffp-contract=off).
//   2. These files include no header with inline functions of the standard
//      library: the linker keeps one copy of such a function, and it could keep
//      the one that was compiled for a newer CPU.
//   3. The caller checks indices; the loops do not.
//
// In all shapes: n ids or occurrences, u keys, b bags. All arrays are in host
// memory, C-contiguous.
#ifndef SPARRING_KERNELS_LEVEL_H_
#define SPARRING_KERNELS_LEVEL_H_

#include <cstdint>

#include "sparring/initial_value.h"
#include "sparring/update_methods.h"

namespace sparring::kernels {

template <class T>
struct GatherArguments {
  const T* rows;           // (u, dim)
  const int64_t* inverse;  // (n), each in [0, u)
  T* out;                  // (n, dim), all written
  int64_t count;           // n
  int64_t dim;
};

template <class T>
struct PoolArguments {
  const T* rows;           // (u, dim)
  const int64_t* inverse;  // (n), each in [0, u)
  const int64_t* offsets;  // (b + 1), non-decreasing, from 0 to n
  const T* weights;        // (n), or NULL: all one
  T* out;                  // (b, dim), all written
  int64_t count;           // n
  int64_t dim;
  bool is_mean;            // divide by the number of ids in the bag
};

template <class T>
struct WeightGradientArguments {
  const T* gradient;       // (b, dim)
  const T* rows;           // (u, dim)
  const int64_t* inverse;  // (n), each in [0, u)
  const int64_t* offsets;  // (b + 1), non-decreasing, from 0 to n
  T* out;                  // (n), all written
  int64_t count;           // n
  int64_t dim;
  bool is_mean;
};

// Adds row `b` of `source`, multiplied by its weight, to row targets[i] of `out`, for
// every occurrence i of every bag b.
template <class T>
struct ScatterArguments {
  const T* source;         // (b, dim)
  const int64_t* targets;  // (n), each in [0, num_rows)
  const int64_t* offsets;  // (b + 1), or NULL: bag i is occurrence i
  const T* weights;        // (n), or NULL: all one
  T* out;                  // (num_rows, dim), zeroed beforehand
  int64_t count;           // n
  int64_t num_bags;        // b
  int64_t num_rows;
  int64_t dim;
  bool is_mean;            // divide by the number of ids in the bag
};

// One addition of a scatter, for the parallel path: out[target] += source[bag].
struct ScatterEntry {
  uint32_t target;
  uint32_t bag;
};

template <class T>
struct AccumulateArguments {
  const T* gradients;    // (n, dim)
  const int64_t* slots;  // (n): the row to add to, or ~row if the row is new
  T* rows;               // (size, dim)
  int64_t dim;
};

struct InitializeArguments {
  InitialValues values;
  const int64_t* keys;   // (n)
  const uint8_t* found;  // (n): rows where it is not 0 stay as they are
  const void* state;     // (state_width) of the computing type, or NULL: zeros
  void* rows;            // (n, row_bytes) bytes
  int64_t dim;
  int64_t state_width;
  int64_t state_begin;   // bytes; the bytes between embedding and state are zeroed
  int64_t row_bytes;
};

// Pools rows in a storage, for ids [begin, begin + count), at arbitrary addresses. The rows
// of a bag may arrive in several consecutive calls.
template <class T>
struct ShownPoolArguments {
  const void* const* rows;  // (count) embeddings (dim) of the rows' type, none NULL
  const int64_t* offsets;   // (b + 1), non-decreasing
  const T* weights;         // (n), or NULL: all one
  T* out;                   // (b, stride), of which (b, dim) are written
  int64_t stride;
  int64_t begin;
  int64_t count;
  int64_t bag;  // the bag of the id before `begin`, or an empty bag after that one
  int64_t dim;
  bool is_mean;  // divide by the number of ids in the bag
};

// out[i] = sum of sources[j] * scales[j] for j from starts[positions[i]] up to
// starts[positions[i] + 1], in this order.
template <class T>
struct SumArguments {
  const T* const* sources;   // (n) pointers to (dim)
  const T* scales;           // (n), or NULL: all one
  const int64_t* starts;     // (u + 1)
  const int64_t* positions;  // (count), each in [0, u)
  T* out;                    // (count, dim), all written
  int64_t count;
  int64_t dim;
  int64_t num_sources;       // n
};

using updates::UpdateConstants;
using updates::UpdateMethod;

// See update.h.
template <class T>
struct UpdateArguments {
  void* const* rows;    // (count)
  T* embeddings;        // (count, dim), or NULL: at the beginning of the rows
  T* gradients;         // (count, dim), overwritten
  int64_t count;
  int64_t dim;
  int64_t state_begin;  // bytes
  UpdateConstants<T> constants;
  T* states = nullptr;  // (count, state_width), or NULL: in the rows, from state_begin
  int64_t state_width = 0;
};

// float32 embeddings to 16 or 8 bits. Without keys they are rounded to nearest; with keys
// stochastically. See halves.h and bytes.h.
struct EncodeArguments {
  const float* embeddings;  // (count, dim)
  void* const* rows;        // (count): each gets an embedding
  const int64_t* keys;      // (count), or NULL
  uint64_t rounding_seed;
  int64_t step;
  int64_t count;
  int64_t dim;
};

// The states of int8 rows; see bytes.h.
struct StateArguments {
  void* const* rows;        // (count)
  float* states;            // (count, state_width)
  const int64_t* keys;      // (count), or NULL: round to nearest
  uint64_t rounding_seed;
  int64_t step;
  int64_t count;
  int64_t dim;
  int64_t state_width;
  int64_t state_begin;      // bytes
};

// The loops of one level for one dtype. Ranges are half-open, and over n unless specified
// otherwise.
template <class T>
struct RowKernels {
  void (*gather)(const GatherArguments<T>&, int64_t begin, int64_t end);
  void (*pool)(const PoolArguments<T>&, int64_t begin, int64_t end);  // over b
  void (*weight_gradient)(const WeightGradientArguments<T>&, int64_t begin,
                          int64_t end);  // over b
  void (*scatter)(const ScatterArguments<T>&, int64_t begin, int64_t end);  // over b
  // entries (count), scales (count) or NULL: all one
  void (*scatter_entries)(const ScatterArguments<T>&, const ScatterEntry* entries,
                          const T* scales, int64_t count);
  void (*accumulate)(const AccumulateArguments<T>&, int64_t begin, int64_t end);
  void (*initialize)(const InitializeArguments&, int64_t begin, int64_t end);
  bool (*is_finite)(const T* values, int64_t count);  // values (count)
  // The bag of the last id; empty bags before it were zeroed.
  int64_t (*pool_shown)(const ShownPoolArguments<T>&);
  // rows (count) pointers to (dim), out (count, stride)
  void (*gather_shown)(const void* const* rows, int64_t count, int64_t dim, T* out,
                       int64_t stride);
  void (*sum_by_key)(const SumArguments<T>&);
  // The largest of |values|; infinity or NaN if any of them is.
  T (*largest_magnitude)(const T* values, int64_t count);
  void (*update)(UpdateMethod method, const UpdateArguments<T>&);
};

// The loops of one level for rows of a 16-bit or 8-bit type; computations use float32.
struct NarrowKernels {
  void (*initialize)(const InitializeArguments&, int64_t begin, int64_t end);
  int64_t (*pool_shown)(const ShownPoolArguments<float>&);
  void (*gather_shown)(const void* const* rows, int64_t count, int64_t dim, float* out,
                       int64_t stride);
  void (*encode)(const EncodeArguments&);
};

// See blocked_bloom.h.
struct BloomArguments {
  const int64_t* keys;  // (count)
  int64_t count;
  void* blocks;         // (num_blocks, 64) bytes, each at an address that 64 divides
  int64_t num_blocks;
  uint64_t seed;
  uint8_t* found;       // (count), or NULL for add
};

struct LevelKernels {
  RowKernels<float> float32;
  RowKernels<double> float64;
  NarrowKernels float16;
  NarrowKernels bfloat16;
  NarrowKernels int8;
  void (*decode_states)(const StateArguments&);
  void (*encode_states)(const StateArguments&);
  void (*bloom_contains)(const BloomArguments&, int64_t begin, int64_t end);  // over count
  void (*bloom_add)(const BloomArguments&);
};

extern const LevelKernels kPortableKernels;
#if defined(__x86_64__)
extern const LevelKernels kAvx2Kernels;
extern const LevelKernels kAvx512Kernels;
#endif

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_LEVEL_H_
