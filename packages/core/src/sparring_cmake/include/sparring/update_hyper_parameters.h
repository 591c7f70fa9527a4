// The names of update methods and their hyper-parameters, and the constants of a step, for code
// that runs the methods of update_methods.h.
#ifndef SPARRING_UPDATE_HYPER_PARAMETERS_H_
#define SPARRING_UPDATE_HYPER_PARAMETERS_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "sparring/update_methods.h"

namespace sparring::updates {

struct NamedMethod {
  std::string_view name;
  UpdateMethod method;
};
// In the order of the enumeration.
inline constexpr std::array<NamedMethod, 18> kUpdateMethods = {{
    {"sgd", UpdateMethod::sgd},
    {"momentum", UpdateMethod::momentum},
    {"adagrad", UpdateMethod::adagrad},
    {"rowwise_adagrad", UpdateMethod::rowwise_adagrad},
    {"adam", UpdateMethod::adam},
    {"adamw", UpdateMethod::adamw},
    {"partial_rowwise_adam", UpdateMethod::partial_rowwise_adam},
    {"lamb", UpdateMethod::lamb},
    {"rmsprop", UpdateMethod::rmsprop},
    {"lion", UpdateMethod::lion},
    {"ftrl", UpdateMethod::ftrl},
    {"group_ftrl", UpdateMethod::group_ftrl},
    {"keras_sgd", UpdateMethod::keras_sgd},
    {"keras_momentum", UpdateMethod::keras_momentum},
    {"keras_adagrad", UpdateMethod::keras_adagrad},
    {"keras_rmsprop", UpdateMethod::keras_rmsprop},
    {"keras_adam", UpdateMethod::keras_adam},
    {"sparse_adam", UpdateMethod::sparse_adam},
}};

// Returns false for an unknown name.
inline bool update_method_named(std::string_view name, UpdateMethod* method) {
  for (const NamedMethod& each : kUpdateMethods) {
    if (each.name != name) continue;
    *method = each.method;
    return true;
  }
  return false;
}

// Number of elements of optimizer state for a row of `dim`.
constexpr int64_t state_width_of(UpdateMethod method, int64_t dim) {
  switch (method) {
    case UpdateMethod::sgd:
    case UpdateMethod::keras_sgd:
      return 0;
    case UpdateMethod::rowwise_adagrad:
      return 1;
    case UpdateMethod::momentum:
    case UpdateMethod::adagrad:
    case UpdateMethod::rmsprop:
    case UpdateMethod::lion:
    case UpdateMethod::keras_momentum:
    case UpdateMethod::keras_adagrad:
    case UpdateMethod::keras_rmsprop:
      return dim;
    case UpdateMethod::partial_rowwise_adam:
      return dim + 1;
    case UpdateMethod::adam:
    case UpdateMethod::adamw:
    case UpdateMethod::lamb:
    case UpdateMethod::ftrl:
    case UpdateMethod::group_ftrl:
    case UpdateMethod::keras_adam:
    case UpdateMethod::sparse_adam:
      return 2 * dim;
  }
  return 0;
}

// The hyper-parameters of all methods; each method reads some of them. sparring/updates checks them.
struct HyperParameters {
  double lr = 0;
  double weight_decay = 0;
  double momentum = 0;
  bool is_nesterov = false;
  double lr_decay = 0;  // adagrad
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double alpha = 0;       // rmsprop: decay rate of the mean of squares
  double beta = 0;        // ftrl: smoothing of the learning rate
  double l1 = 0;          // ftrl
  double l2 = 0;          // ftrl
  double l21 = 0;         // group_ftrl: the group lasso
  double clip_value = 0;  // gradients are clipped to ±this; 0: no clipping
  double clip_norm = 0;   // a row's gradient is scaled to at most this norm; 0: no scaling
};

// Returns false for an unknown hyper-parameter. `nesterov`: 0 or 1.
inline bool set_hyper_parameter(HyperParameters* hyper, std::string_view name, double value) {
  struct Field {
    std::string_view name;
    double HyperParameters::*field;
  };
  constexpr Field fields[] = {
      {"lr", &HyperParameters::lr},
      {"weight_decay", &HyperParameters::weight_decay},
      {"momentum", &HyperParameters::momentum},
      {"lr_decay", &HyperParameters::lr_decay},
      {"beta1", &HyperParameters::beta1},
      {"beta2", &HyperParameters::beta2},
      {"eps", &HyperParameters::eps},
      {"alpha", &HyperParameters::alpha},
      {"beta", &HyperParameters::beta},
      {"l1", &HyperParameters::l1},
      {"l2", &HyperParameters::l2},
      {"l21", &HyperParameters::l21},
      {"clip_value", &HyperParameters::clip_value},
      {"clip_norm", &HyperParameters::clip_norm},
  };
  if (name == "nesterov") {
    hyper->is_nesterov = value != 0;
    return true;
  }
  for (const Field& each : fields) {
    if (each.name != name) continue;
    hyper->*(each.field) = value;
    return true;
  }
  return false;
}

// The constants of `method` in a step, counted from 1; computed in double and rounded once.
template <class T>
UpdateConstants<T> constants_of(UpdateMethod method, const HyperParameters& hyper,
                                int64_t num_steps) {
  const auto step = static_cast<double>(num_steps);
  const double correction1 = 1 - std::pow(hyper.beta1, step);
  const double correction2 = 1 - std::pow(hyper.beta2, step);
  double lr = hyper.lr;
  if (method == UpdateMethod::adagrad) lr = hyper.lr / (1 + (step - 1) * hyper.lr_decay);
  // Both bias corrections, in the order of torch.
  if (method == UpdateMethod::sparse_adam) lr = hyper.lr * std::sqrt(correction2) / correction1;
  const auto rounded = [](double value) { return static_cast<T>(value); };
  return {
      .lr = rounded(lr),
      .weight_decay = rounded(hyper.weight_decay),
      .shrinking = rounded(1 - lr * hyper.weight_decay),
      .momentum = rounded(hyper.momentum),
      .is_nesterov = hyper.is_nesterov,
      .beta1 = rounded(hyper.beta1),
      .one_minus_beta1 = rounded(1 - hyper.beta1),
      .beta2 = rounded(hyper.beta2),
      .one_minus_beta2 = rounded(1 - hyper.beta2),
      .correction1 = rounded(correction1),
      // Like Python's `** 0.5`, which torch uses; for some numbers it is not the nearest to the root.
      .root_correction = rounded(std::pow(correction2, 0.5)),
      .step_size = rounded(lr / correction1),
      .eps = rounded(hyper.eps),
      .alpha = rounded(hyper.alpha),
      .one_minus_alpha = rounded(1 - hyper.alpha),
      .inverse_lr = rounded(1 / lr),
      .beta = rounded(hyper.beta),
      .l1 = rounded(hyper.l1),
      .l2 = rounded(hyper.l2),
      .l21 = rounded(hyper.l21),
      .is_clipping = hyper.clip_value > 0 || hyper.clip_norm > 0,
      .clip_value = rounded(hyper.clip_value),
      .clip_norm = rounded(hyper.clip_norm),
  };
}

}  // namespace sparring::updates

#endif  // SPARRING_UPDATE_HYPER_PARAMETERS_H_
