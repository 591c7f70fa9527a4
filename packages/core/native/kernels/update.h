// Update methods: gradients into rows, embedding and state in one visit.
//
// A method works row by row: what it does to a row depends on that row, its
// gradient, the hyper-parameters and the number of the step, and on nothing else.
// So rows may come in any order and on any number of threads, and give the same
// bits; the SIMD level does not matter either.
//
// Everything is computed in the computing type of the rows (row_layout.h). An
// embedding of 16-bit type is rounded stochastically: up or down at random, so
// that the expected value is exact, with the randomness a function of (seed,
// step, key, column); see halves.h.
#ifndef SPARRING_KERNELS_UPDATE_H_
#define SPARRING_KERNELS_UPDATE_H_

#include <cstdint>

#include <string_view>

#include "kernels/level.h"
#include "kernels/row_layout.h"

namespace sparring::kernels {

// Returns false for a name that is no method of UpdateMethod (level.h).
bool update_method_named(std::string_view name, UpdateMethod* method);

// The hyper-parameters of all methods; each reads its own. Meanings and papers
// are in sparring/updates, which also checks them.
struct HyperParameters {
  double lr = 0;
  double weight_decay = 0;
  double momentum = 0;
  bool is_nesterov = false;
  double lr_decay = 0;  // adagrad
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double alpha = 0;       // rmsprop: what the mean of squares keeps
  double beta = 0;        // ftrl: smoothing of the learning rate
  double l1 = 0;          // ftrl
  double l2 = 0;          // ftrl
  double l21 = 0;         // group_ftrl: the group lasso
  double clip_value = 0;  // gradients are held within ±this; 0: not
  double clip_norm = 0;   // a row's gradient is scaled to at most this norm; 0: not
};

struct UpdateSpec {
  UpdateMethod method;
  RowLayout layout;
  HyperParameters hyper;
  int64_t step;           // of this update, from 1
  uint64_t rounding_seed;  // of 16-bit rows; see halves.h
};

// A spec with its constants worked out, for many calls.
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

// How many elements of state a method keeps for a row of `dim`.
int64_t state_width_of(UpdateMethod method, int64_t dim);

// On the calling thread. REQUIRES: layout.state_width == state_width_of(method, dim),
// dim at most 65,536.
void update_rows(const PreparedUpdate& update, const UpdateRows& rows);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_UPDATE_H_
