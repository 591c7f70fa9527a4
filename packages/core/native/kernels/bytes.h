// int8 rows: embedding and optimizer state with 8 bits per element. All computations use
// float32.
//
//   byte  0              dim         dim + 2         row_bytes
//         ┌──────────────┬───────────┬───────────────┐
//         │ codes (dim)  │ scale     │ state         │
//         └──────────────┴───────────┴───────────────┘
//
// Embedding: element i is codes[i] * scale, with int8 codes from -127 to 127 and a float16 scale.
//   1. The scale is the largest magnitude m of the embedding divided by 127, rounded up to a
//      number with 2 bits of mantissa, from 2^-22 to 448: see sparring/initial_value.h. It is a
//      function of the new embedding only. It seldom changes from step to step, so that elements that change
//      little keep their codes.
//   2. The quotient x of an element and the scale is rounded to a multiple of 2^-14. Its code
//      is floor(x + r / 2^14). To nearest, r = 2^13. Stochastically, r is the upper 14 bits of
//      the 16 random bits that halves.h defines, so that the expected value is x.
//   3. Larger numbers than 127 * 448 become that number. If an element is NaN or infinite, the
//      scale is NaN, and all elements of the embedding read as NaN.
//
// State: state_width = k * dim + r elements are k vectors, each with dim codes of 8 bits and a
// scale, followed by r bfloat16 numbers, rounded as in halves.h.
//   1. A code is a sign, 4 bits of exponent e and 3 bits of mantissa t, and represents
//      t (e = 0) or (8 + t) * 2^(e - 1), up to 15 * 2^14, multiplied by the scale.
//   2. The scale is the smallest power of two with which the largest magnitude of the vector
//      can be represented, at least 2^-126, stored as bfloat16; 0 for a vector of zeros.
//   3. Codes are rounded to nearest (ties to even), or stochastically with 16 random bits. A
//      number that is not 0 never becomes 0, because Adam divides by the second moment.
//   4. The random bits are those of column (j + 1) * p + i for element i of vector j, and
//      (k + 1) * p + i for number i, where p is dim rounded up to a multiple of 64.
//   5. If an element is NaN or infinite, the vector reads as NaN.
//
// Embeddings and states that these formats can represent with the same scale do not change. THE BITS
// ARE PART OF THE FORMAT.
#ifndef SPARRING_KERNELS_BYTES_H_
#define SPARRING_KERNELS_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/halves.h"
#include "kernels/row_layout.h"
#include "sparring/storage_abi.h"

namespace sparring::kernels {

// The states of int8 rows (n, row_bytes). REQUIRES: layout.type == RowType::int8.
void decode_states(const SparringExecutor* executor, const RowLayout& layout, const void* rows,
                   int64_t count, float* states);  // states (n, state_width)

void encode_states(const SparringExecutor* executor, const RowLayout& layout, const float* states,
                   const Rounding& rounding, int64_t count, void* rows);

// The bytes of a state in rows of any type: state (state_width) of the computing type, or NULL:
// zeros, for which the result is empty.
std::vector<std::byte> stored_state(const RowLayout& layout, const void* state);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_BYTES_H_
