// The update methods of kernels, and the constants for their loops: one list for core's CPU
// kernels and the kernels of other packages. sparring/updates documents the methods and their
// papers.
//
// This header includes no standard header with inline functions, because core compiles it once
// per SIMD level; native/kernels/level.h explains the reason. update_hyper_parameters.h contains
// the rest.
#ifndef SPARRING_UPDATE_METHODS_H_
#define SPARRING_UPDATE_METHODS_H_

#include <stdint.h>

namespace sparring::updates {

enum class UpdateMethod : int32_t {
  sgd,
  momentum,
  adagrad,
  rowwise_adagrad,
  adam,
  adamw,
  partial_rowwise_adam,
  lamb,
  rmsprop,
  lion,
  ftrl,
  group_ftrl,
  // Bit-identical to Keras's optimizers of these names; the methods above follow torch.
  keras_sgd,
  keras_momentum,
  keras_adagrad,
  keras_rmsprop,
  keras_adam,
  sparse_adam,
};

// The hyper-parameters of a step, converted for the loops.
template <class T>
struct UpdateConstants {
  T lr;  // of this step, including decay
  T weight_decay;
  T shrinking;  // 1 - lr * weight_decay
  T momentum;
  bool is_nesterov;
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T correction1;      // 1 - beta1^step
  T root_correction;  // sqrt(1 - beta2^step)
  T step_size;        // lr / correction1
  T eps;
  T alpha;
  T one_minus_alpha;
  T inverse_lr;
  T beta;
  T l1;
  T l2;
  T l21;
  bool is_clipping;
  T clip_value;
  T clip_norm;
};

}  // namespace sparring::updates

#endif  // SPARRING_UPDATE_METHODS_H_
