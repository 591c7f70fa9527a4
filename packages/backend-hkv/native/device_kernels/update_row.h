// The update methods for one row, for kernels. core's native/kernels/level_update.inc contains
// the same formulas for the CPU, and sparring/updates the sources of the methods.
#ifndef SPARRING_HKV_DEVICE_KERNELS_UPDATE_ROW_H_
#define SPARRING_HKV_DEVICE_KERNELS_UPDATE_ROW_H_

#include "device_kernels/dot.h"
#include "device_kernels/scalars.h"
#include "device_kernels/update.h"

namespace sparring::device_kernels {

// One column of a row whose state starts with one number per column.
template <class T>
struct Column {
  T embedding;
  T state;
  T gradient;
};

// One row and the lanes that update it, each with its own columns. A tile without a row has
// dim 0 and takes part in the sums.
template <class T>
struct UpdatedRow {
  DotTile<T> tile;
  T* embedding;  // (dim)
  T* state;      // in the layout of the method
  T* gradient;   // (dim), may be overwritten
  int64_t dim;
  T width;       // dim as a divisor, also in tiles without a row

  template <class Body>
  SPARRING_DEVICE void each_column(const Body& body) const {
    for (int64_t at = tile.lane(); at < dim; at += DotTile<T>::num_lanes) body(at);
  }
  SPARRING_DEVICE Column<T> column(int64_t at) const {
    return {embedding[at], state[at], gradient[at]};
  }
  // store(at, load(at)) for each column, with several loads in flight before the first store: the
  // compiler cannot assume that a store does not change the data of later loads.
  template <class Load, class Store>
  SPARRING_DEVICE void each_loaded(const Load& load, const Store& store) const {
    constexpr int kInFlight = 4;
    constexpr int64_t step = DotTile<T>::num_lanes;
    for (int64_t first = tile.lane(); first < dim; first += kInFlight * step) {
      decltype(load(first)) values[kInFlight] = {};
      SPARRING_UNROLL
      for (int k = 0; k < kInFlight; ++k) {
        if (first + k * step < dim) values[k] = load(first + k * step);
      }
      SPARRING_UNROLL
      for (int k = 0; k < kInFlight; ++k) {
        if (first + k * step < dim) store(first + k * step, values[k]);
      }
    }
  }
  SPARRING_DEVICE T squares_of(const T* values) const { return dot(tile, values, values, dim); }
  // State with one number per row: all lanes read it before one writes it.
  SPARRING_DEVICE T number(int64_t at) const { return dim > 0 ? state[at] : T{0}; }
  SPARRING_DEVICE void set_number(int64_t at, T value) const {
    tile.sync();
    if (dim > 0 && tile.lane() == 0) state[at] = value;
  }
};

template <class T>
SPARRING_DEVICE void clip(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  if (c.clip_value > 0) {
    row.each_column([&](int64_t at) {
      T g = row.gradient[at];
      g = g > c.clip_value ? c.clip_value : g;
      g = g < -c.clip_value ? -c.clip_value : g;
      row.gradient[at] = g;
    });
  }
  if (c.clip_norm > 0) {
    const T norm = square_root(row.squares_of(row.gradient));
    if (norm > c.clip_norm) {
      const T scale = c.clip_norm / norm;
      row.each_column([&](int64_t at) { row.gradient[at] = row.gradient[at] * scale; });
    }
  }
}

// gradient += weight_decay * embedding
template <class T>
SPARRING_DEVICE void add_decay(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  if (c.weight_decay == 0) return;
  row.each_column([&](int64_t at) {
    row.gradient[at] = multiply_add(row.embedding[at], c.weight_decay, row.gradient[at]);
  });
}

template <class T>
SPARRING_DEVICE void shrink(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  if (c.weight_decay == 0) return;
  row.each_column([&](int64_t at) { row.embedding[at] = row.embedding[at] * c.shrinking; });
}

template <class T>
SPARRING_DEVICE void descend(const UpdatedRow<T>& row, const T* direction, T scale) {
  row.each_loaded(
      [&](int64_t at) { return multiply_add(direction[at], -scale, row.embedding[at]); },
      [&](int64_t at, T value) { row.embedding[at] = value; });
}

template <class T>
SPARRING_DEVICE void update_sgd(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  add_decay(c, row);
  descend(row, row.gradient, c.lr);
}

template <class T>
SPARRING_DEVICE void update_momentum(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  add_decay(c, row);
  row.each_column([&](int64_t at) {
    const T g = row.gradient[at];
    const T buffer = row.state[at] * c.momentum + g;
    row.state[at] = buffer;
    row.gradient[at] = c.is_nesterov ? multiply_add(buffer, c.momentum, g) : buffer;
  });
  descend(row, row.gradient, c.lr);
}

template <class T>
SPARRING_DEVICE void update_adagrad(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  add_decay(c, row);
  row.each_loaded([&](int64_t at) { return row.column(at); },
                  [&](int64_t at, const Column<T>& old) {
                    const T g = old.gradient;
                    const T sum = multiply_add(g, g, old.state);
                    row.state[at] = sum;
                    row.embedding[at] = old.embedding - g * c.lr / (square_root(sum) + c.eps);
                  });
}

template <class T>
SPARRING_DEVICE void update_rowwise_adagrad(const UpdateConstants<T>& c,
                                            const UpdatedRow<T>& row) {
  add_decay(c, row);
  const T before = row.number(0);
  const T sum = before + row.squares_of(row.gradient) / row.width;
  row.set_number(0, sum);
  descend(row, row.gradient, c.lr / (square_root(sum) + c.eps));
}

// Updates the moments with the gradient g of one column; returns the change of the embedding
// without the learning rate: see update_adam and update_lamb.
template <class T>
struct Moments {
  T first;
  T scale;  // sqrt(second) / root_correction + eps
};
template <class T>
SPARRING_DEVICE Moments<T> advance_moments(const UpdateConstants<T>& c, const UpdatedRow<T>& row,
                                           int64_t at, T g, T first, T second) {
  const T m = c.one_minus_beta1 < T{0.5}
                  ? multiply_add(g - first, c.one_minus_beta1, first)
                  : multiply_add(first - g, T{1} - c.one_minus_beta1, g);
  const T v = multiply_add(g * c.one_minus_beta2, g, second * c.beta2);
  row.state[at] = m;
  row.state[row.dim + at] = v;
  return {m, square_root(v) / c.root_correction + c.eps};
}

template <class T>
SPARRING_DEVICE void update_adam(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  struct Loaded {
    Column<T> column;
    T second;
  };
  row.each_loaded(
      [&](int64_t at) { return Loaded{row.column(at), row.state[row.dim + at]}; },
      [&](int64_t at, const Loaded& old) {
        const Moments<T> moments =
            advance_moments(c, row, at, old.column.gradient, old.column.state, old.second);
        row.embedding[at] = old.column.embedding - moments.first * c.step_size / moments.scale;
      });
}

template <class T>
SPARRING_DEVICE void update_partial_rowwise_adam(const UpdateConstants<T>& c,
                                                 const UpdatedRow<T>& row) {
  const T before = row.number(row.dim);
  const T v = before * c.beta2 + row.squares_of(row.gradient) / row.width * c.one_minus_beta2;
  row.set_number(row.dim, v);
  shrink(c, row);
  row.each_column([&](int64_t at) {
    row.state[at] = row.state[at] * c.beta1 + row.gradient[at] * c.one_minus_beta1;
  });
  descend(row, row.state, c.step_size / (square_root(v) / c.root_correction + c.eps));
}

template <class T>
SPARRING_DEVICE void update_lamb(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  row.each_column([&](int64_t at) {
    const Moments<T> moments = advance_moments(c, row, at, row.gradient[at], row.state[at],
                                               row.state[row.dim + at]);
    row.gradient[at] =
        moments.first / c.correction1 / moments.scale + row.embedding[at] * c.weight_decay;
  });
  const T length = square_root(row.squares_of(row.embedding));
  const T stride = square_root(row.squares_of(row.gradient));
  const T trust = length > 0 && stride > 0 ? length / stride : T{1};
  descend(row, row.gradient, c.lr * trust);
}

template <class T>
SPARRING_DEVICE void update_rmsprop(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  add_decay(c, row);
  row.each_loaded([&](int64_t at) { return row.column(at); },
                  [&](int64_t at, const Column<T>& old) {
                    const T g = old.gradient;
                    const T square = multiply_add(g * c.one_minus_alpha, g, old.state * c.alpha);
                    row.state[at] = square;
                    row.embedding[at] = old.embedding - g * c.lr / (square_root(square) + c.eps);
                  });
}

template <class T>
SPARRING_DEVICE void update_lion(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  shrink(c, row);
  row.each_loaded([&](int64_t at) { return row.column(at); },
                  [&](int64_t at, const Column<T>& old) {
                    const T g = old.gradient;
                    const T m = old.state;
                    const T mixed = m * c.beta1 + g * c.one_minus_beta1;
                    const T step = mixed > 0 ? c.lr : mixed < 0 ? -c.lr : T{0};
                    row.embedding[at] = old.embedding - step;
                    row.state[at] = m * c.beta2 + g * c.one_minus_beta2;
                  });
}

// Updates the sums of squares and the linear terms z; `gradient` becomes z shrunk towards zero
// by l1, with the opposite sign.
template <class T>
SPARRING_DEVICE void advance_ftrl(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  row.each_column([&](int64_t at) {
    const T g = row.gradient[at];
    const T before = row.state[at];
    const T after = before + g * g;
    const T sigma = (square_root(after) - square_root(before)) * c.inverse_lr;
    const T z = row.state[row.dim + at] + g - row.embedding[at] * sigma;
    row.state[at] = after;
    row.state[row.dim + at] = z;
    row.gradient[at] = z > c.l1 ? c.l1 - z : z < -c.l1 ? -c.l1 - z : T{0};
  });
}

template <class T>
SPARRING_DEVICE void settle_ftrl(const UpdateConstants<T>& c, const UpdatedRow<T>& row, T share) {
  row.each_column([&](int64_t at) {
    const T curve = (square_root(row.state[at]) + c.beta) * c.inverse_lr + c.l2;
    row.embedding[at] = row.gradient[at] * share / curve;
  });
}

template <class T>
SPARRING_DEVICE void update_ftrl(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  advance_ftrl(c, row);
  settle_ftrl(c, row, T{1});
}

template <class T>
SPARRING_DEVICE void update_group_ftrl(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  advance_ftrl(c, row);
  const T norm = square_root(row.squares_of(row.gradient));
  const T threshold = c.l21 * square_root(row.width);
  settle_ftrl(c, row, norm > threshold ? T{1} - threshold / norm : T{0});
}

template <class T>
SPARRING_DEVICE void update_adam_decayed(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  add_decay(c, row);
  update_adam(c, row);
}

template <class T>
SPARRING_DEVICE void update_adamw(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  shrink(c, row);
  update_adam(c, row);
}

// Keras optimizers: see core's level_update.inc.
template <class T>
SPARRING_DEVICE void shrink_as_keras(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  if (c.weight_decay == 0) return;
  row.each_column([&](int64_t at) {
    const T w = row.embedding[at];
    row.embedding[at] = w - w * c.weight_decay;
  });
}

template <class T>
SPARRING_DEVICE void update_keras_sgd(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  shrink_as_keras(c, row);
  row.each_column(
      [&](int64_t at) { row.embedding[at] = row.embedding[at] - row.gradient[at] * c.lr; });
}

template <class T>
SPARRING_DEVICE void update_keras_momentum(const UpdateConstants<T>& c,
                                           const UpdatedRow<T>& row) {
  shrink_as_keras(c, row);
  row.each_column([&](int64_t at) {
    const T step = row.gradient[at] * c.lr;
    const T velocity = row.state[at] * c.momentum - step;
    row.state[at] = velocity;
    row.embedding[at] =
        row.embedding[at] + (c.is_nesterov ? velocity * c.momentum - step : velocity);
  });
}

template <class T>
SPARRING_DEVICE void update_keras_adagrad(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  shrink_as_keras(c, row);
  row.each_column([&](int64_t at) {
    const T g = row.gradient[at];
    const T sum = row.state[at] + g * g;
    row.state[at] = sum;
    row.embedding[at] = row.embedding[at] - g * c.lr / square_root(sum + c.eps);
  });
}

template <class T>
SPARRING_DEVICE void update_keras_rmsprop(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  shrink_as_keras(c, row);
  row.each_column([&](int64_t at) {
    const T g = row.gradient[at];
    const T square = row.state[at] * c.alpha + g * g * c.one_minus_alpha;
    row.state[at] = square;
    row.embedding[at] = row.embedding[at] - g * c.lr / square_root(square + c.eps);
  });
}

template <class T>
SPARRING_DEVICE void update_keras_adam(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  shrink_as_keras(c, row);
  row.each_column([&](int64_t at) {
    const T g = row.gradient[at];
    const T first = row.state[at];
    const T second = row.state[row.dim + at];
    const T m = first + (g - first) * c.one_minus_beta1;
    const T v = second + (g * g - second) * c.one_minus_beta2;
    row.state[at] = m;
    row.state[row.dim + at] = v;
    row.embedding[at] = row.embedding[at] - m * c.lr / (square_root(v) + c.eps);
  });
}

// torch.optim.SparseAdam: see core's level_update.inc.
template <class T>
SPARRING_DEVICE void update_sparse_adam(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  row.each_column([&](int64_t at) {
    const T g = row.gradient[at];
    const T first = row.state[at];
    const T second = row.state[row.dim + at];
    const T m = (g - first) * c.one_minus_beta1 + first;
    const T v = (g * g - second) * c.one_minus_beta2 + second;
    row.state[at] = m;
    row.state[row.dim + at] = v;
    row.embedding[at] = row.embedding[at] - m / (square_root(v) + c.eps) * c.lr;
  });
}

template <UpdateMethod kMethod, class T>
SPARRING_DEVICE void update_row(const UpdateConstants<T>& c, const UpdatedRow<T>& row) {
  clip(c, row);
  if constexpr (kMethod == UpdateMethod::sgd) update_sgd(c, row);
  if constexpr (kMethod == UpdateMethod::momentum) update_momentum(c, row);
  if constexpr (kMethod == UpdateMethod::adagrad) update_adagrad(c, row);
  if constexpr (kMethod == UpdateMethod::rowwise_adagrad) update_rowwise_adagrad(c, row);
  if constexpr (kMethod == UpdateMethod::adam) update_adam_decayed(c, row);
  if constexpr (kMethod == UpdateMethod::adamw) update_adamw(c, row);
  if constexpr (kMethod == UpdateMethod::partial_rowwise_adam) update_partial_rowwise_adam(c, row);
  if constexpr (kMethod == UpdateMethod::lamb) update_lamb(c, row);
  if constexpr (kMethod == UpdateMethod::rmsprop) update_rmsprop(c, row);
  if constexpr (kMethod == UpdateMethod::lion) update_lion(c, row);
  if constexpr (kMethod == UpdateMethod::ftrl) update_ftrl(c, row);
  if constexpr (kMethod == UpdateMethod::group_ftrl) update_group_ftrl(c, row);
  if constexpr (kMethod == UpdateMethod::keras_sgd) update_keras_sgd(c, row);
  if constexpr (kMethod == UpdateMethod::keras_momentum) update_keras_momentum(c, row);
  if constexpr (kMethod == UpdateMethod::keras_adagrad) update_keras_adagrad(c, row);
  if constexpr (kMethod == UpdateMethod::keras_rmsprop) update_keras_rmsprop(c, row);
  if constexpr (kMethod == UpdateMethod::keras_adam) update_keras_adam(c, row);
  if constexpr (kMethod == UpdateMethod::sparse_adam) update_sparse_adam(c, row);
}

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_UPDATE_ROW_H_
