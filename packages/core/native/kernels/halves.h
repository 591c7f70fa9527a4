// Rows of 16-bit types: float16 (IEEE binary16) and bfloat16 (the upper half of a
// float32). All computations with them use float32.
//
// To float32: exact. A NaN stays a NaN, with its payload.
//
// From float32, to nearest: ties to even; beyond the largest finite number, infinity. A
// NaN becomes a quiet NaN.
//
// From float32, stochastically: up or down at random, so that the expected value is
// the number itself. THE BITS ARE PART OF THE FORMAT, so that a run can be repeated
// on another machine or device.
//
//   1. r, 16 random bits, are the lower (even column) or upper (odd column) half of
//      rounding_word(stream, column / 2), where
//      stream = rounding_stream(rounding_salt(rounding_seed, step), key) and
//      rounding_seed = rounding_seed_for(philox_key): see sparring/initial_value.h.
//   2. The magnitude, in units of 2^-16 of the last place of the result, is truncated to
//      an integer, r is added, and the sum is truncated to whole last places. (float16
//      from 2^-14 keeps 10 bits of a float32's 23, so the upper 13 bits of r determine
//      the result.)
//   3. A finite number beyond the largest finite number becomes that number, not infinity,
//      so that a slightly too large step does not destroy a row.
//   4. Infinity stays infinity; a NaN becomes a quiet NaN.
//
// Therefore the expected value is exact for bfloat16, and for float16 from 2^-14; below, it
// is too small by less than 2^-40. Numbers that 16 bits can represent never change.
#ifndef SPARRING_KERNELS_HALVES_H_
#define SPARRING_KERNELS_HALVES_H_

#include <cstdint>

#include "kernels/level.h"
#include "kernels/row_layout.h"
#include "sparring/storage_abi.h"

namespace sparring::kernels {

// Whether embeddings must be decoded for computations, which use float32.
constexpr bool is_narrow(RowType type) {
  return type == RowType::float16 || type == RowType::bfloat16 || type == RowType::int8;
}

// The loops for rows of `type`. REQUIRES: is_narrow(type).
const NarrowKernels& narrow_kernels(RowType type);

// Embeddings in an array, each optionally at the beginning of a wider row.
struct NarrowRows {
  RowType type;    // a 16-bit one, or int8
  void* first;     // the first embedding
  int64_t stride;  // bytes from one to the next
  int64_t count;   // n
  int64_t dim;
};

// out (n, dim)
void decode(const SparringExecutor* executor, const NarrowRows& rows, float* out);

struct Rounding {
  const int64_t* keys = nullptr;  // (n), or NULL: round to nearest
  uint64_t seed = 0;              // from sparring::rounding_seed_for
  int64_t step = 0;
};

// embeddings (n, dim)
void encode(const SparringExecutor* executor, const float* embeddings, const Rounding& rounding,
            const NarrowRows& rows);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_HALVES_H_
