// What a key reads as before it has a row. THIS IS PART OF THE FORMAT: another
// device, framework or version must give the same bits.
//
// Element `column` of the embedding of `key` is made as follows, in IEEE double with
// round-to-nearest and no fused multiply-add, and is rounded to the table's dtype
// once, at the end, to nearest, even where two are.
//
//   1. philox_key = mix64(uint64(seed) ^ rotate_left(table_hash(name), 32)),
//      with mix64 and table_hash from hash.h.
//   2. word = word (column % 4) of Philox4x32-10 for the counter
//      (low half of key, high half of key, column / 4, 0) and the Philox key
//      (low half of philox_key, high half of philox_key). A key's halves are those
//      of its two's complement.
//   3. u = (word + 0.5) / 2^32, which is exact and within (0, 1).
//   4. uniform(low, high), and xavier with low = -limit, high = limit:
//        value = low + u * (high - low), held within [lower, upper], where lower is
//        the smallest number of the dtype above low, and upper the largest below
//        high (if the dtype has none between: the one nearest to low, for both).
//      normal(mean, stddev):
//        value = mean + normal(u) * stddev.
//      truncated_normal(mean, stddev):
//        p = 0.02275013194817921 + u * (0.97724986805182079 - 0.02275013194817921),
//        value = mean + normal(p) * stddev, held within mean ± 2 stddev, bounds that
//        are rounded to the dtype.
//      normal() is algorithm AS 241, with the logarithm of level_normal.inc.
//   5. constant(value), and zeros with value = 0: the value, rounded to the dtype.
#ifndef SPARRING_KERNELS_INITIALIZE_H_
#define SPARRING_KERNELS_INITIALIZE_H_

#include <cstdint>
#include <string_view>

#include "kernels/level.h"
#include "kernels/row_layout.h"
#include "sparring/storage_abi.h"

namespace sparring::kernels {

// A table's initializer. `kind` and parameters as in sparring/contracts/initializers.py.
struct InitializerSpec {
  InitialKind kind;
  double first;   // constant: the value; uniform: low; normal: mean
  double second;  // uniform: high; normal: standard deviation
  uint64_t philox_key;
  int64_t dim;
};

// Reads zeros, constant, uniform, normal, truncated_normal or xavier; returns false
// for any other name.
bool initial_kind_named(std::string_view name, InitialKind* kind);

uint64_t philox_key_for(int64_t seed, uint64_t table_hash);

struct InitializeRows {
  RowLayout layout;      // its dim is the initializer's
  const int64_t* keys;   // (n)
  const uint8_t* found;  // (n): rows where it is not 0 stay as they are
  int64_t count;         // n
  const void* state;     // (state_width) of the computing type, or NULL: zeros
  void* rows;            // in, out (n) rows of row_bytes, one after the other
};

// Writes the missing rows: the initial embedding, then `state`. The bits do not
// depend on the order of keys, the number of threads or the SIMD level.
void initialize(const SparringExecutor* executor, const InitializerSpec& spec,
                const InitializeRows& rows);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_INITIALIZE_H_
