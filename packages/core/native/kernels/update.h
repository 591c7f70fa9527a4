// Update methods: apply gradients to the embedding and the state of rows in one visit.
//
// A method updates each row separately: the result depends only on the row, its gradient,
// the hyper-parameters and the number of the step. Therefore the bits do not depend on
// the order of rows, the number of threads or the SIMD level.
//
// All computations use the computing type of the rows (row_layout.h). An embedding of a
// 16-bit type, and embedding and state of int8 rows, are rounded stochastically, up or down at
// random, so that the expected value is exact. The randomness is a function of (seed, step,
// key, column); see halves.h and bytes.h.
#ifndef SPARRING_KERNELS_UPDATE_H_
#define SPARRING_KERNELS_UPDATE_H_

#include <cstdint>

#include "kernels/level.h"
#include "kernels/row_layout.h"
#include "sparring/update_hyper_parameters.h"

namespace sparring::kernels {

using updates::HyperParameters;

struct UpdateSpec {
  UpdateMethod method;
  RowLayout layout;
  HyperParameters hyper;
  int64_t step;           // of this update, from 1
  uint64_t rounding_seed;  // of narrow rows; see halves.h
};

// A spec with its computed constants, for many calls.
struct PreparedUpdate {
  explicit PreparedUpdate(const UpdateSpec& spec);

  UpdateSpec spec;
  UpdateConstants<float> float32;
  UpdateConstants<double> float64;
};

struct UpdateRows {
  const int64_t* keys;   // (n) int64
  void* const* rows;     // (n) pointers to rows of layout.row_bytes, unaligned
  void* gradients;       // (n, dim) of the computing type; clipping overwrites it
  int64_t count;         // n
};

// On the calling thread. REQUIRES: layout.state_width == updates::state_width_of(method, dim),
// dim at most 65,536.
void update_rows(const PreparedUpdate& update, const UpdateRows& rows);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_UPDATE_H_
