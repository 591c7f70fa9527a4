#include "kernels/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/halves.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

using Named = std::pair<std::string_view, UpdateMethod>;

constexpr std::array<Named, 12> kMethods = {{
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
}};

// Worked out in double and rounded once.
template <class T>
UpdateConstants<T> constants_of(const UpdateSpec& spec) {
  const HyperParameters& hyper = spec.hyper;
  const auto step = static_cast<double>(spec.step);
  const double lr = spec.method == UpdateMethod::adagrad
                        ? hyper.lr / (1 + (step - 1) * hyper.lr_decay)
                        : hyper.lr;
  const double correction1 = 1 - std::pow(hyper.beta1, step);
  const double correction2 = 1 - std::pow(hyper.beta2, step);
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
      .root_correction = rounded(std::sqrt(correction2)),
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

// Decodes embeddings, `block` of them at a time, lets the method change them, and rounds
// them back. own (block, dim).
void update_decoded(const PreparedUpdate& update, const UpdateRows& rows, float* own,
                    int64_t block) {
  const UpdateSpec& spec = update.spec;
  const int64_t dim = spec.layout.dim;
  const HalfKernels& loops = half_kernels(spec.layout.type);
  const RowKernels<float>& methods = row_kernels<float>();
  auto* const gradients = static_cast<float*>(rows.gradients);
  for (int64_t at = 0; at < rows.count; at += block) {
    const int64_t part = std::min(block, rows.count - at);
    loops.gather_shown(rows.rows + at, part, dim, own, dim);
    methods.update(spec.method, {rows.rows + at, own, gradients + at * dim, part, dim,
                                 spec.layout.state_begin, update.float32});
    loops.encode({own, rows.rows + at, rows.keys + at, spec.rounding_seed, spec.step, part, dim});
  }
}

// On the stack, because rows change where nothing may fail.
constexpr int64_t kMostNear = 4096;
constexpr int64_t kMostDim = 65'536;

[[gnu::noinline]] void update_wide_halves(const PreparedUpdate& update, const UpdateRows& rows) {
  alignas(64) float own[kMostDim];
  update_decoded(update, rows, own, 1);
}

void update_halves(const PreparedUpdate& update, const UpdateRows& rows) {
  const int64_t dim = update.spec.layout.dim;
  if (dim > kMostNear) return update_wide_halves(update, rows);
  alignas(64) float own[kMostNear];
  update_decoded(update, rows, own, kMostNear / dim);
}

}  // namespace

bool update_method_named(std::string_view name, UpdateMethod* method) {
  for (const Named& each : kMethods) {
    if (each.first != name) continue;
    *method = each.second;
    return true;
  }
  return false;
}

int64_t state_width_of(UpdateMethod method, int64_t dim) {
  switch (method) {
    case UpdateMethod::sgd:
      return 0;
    case UpdateMethod::rowwise_adagrad:
      return 1;
    case UpdateMethod::momentum:
    case UpdateMethod::adagrad:
    case UpdateMethod::rmsprop:
    case UpdateMethod::lion:
      return dim;
    case UpdateMethod::partial_rowwise_adam:
      return dim + 1;
    case UpdateMethod::adam:
    case UpdateMethod::adamw:
    case UpdateMethod::lamb:
    case UpdateMethod::ftrl:
    case UpdateMethod::group_ftrl:
      return 2 * dim;
  }
  return 0;
}

PreparedUpdate::PreparedUpdate(const UpdateSpec& spec)
    : spec(spec), float32(constants_of<float>(spec)), float64(constants_of<double>(spec)) {}

void update_rows(const PreparedUpdate& update, const UpdateRows& rows) {
  const auto& [method, layout, hyper, step, seed] = update.spec;
  if (is_half(layout.type)) {
    update_halves(update, rows);
  } else if (layout.type == RowType::float64) {
    row_kernels<double>().update(method, {rows.rows, nullptr,
                                          static_cast<double*>(rows.gradients),
                                          rows.count, layout.dim, layout.state_begin,
                                          update.float64});
  } else {
    row_kernels<float>().update(method, {rows.rows, nullptr, static_cast<float*>(rows.gradients),
                                         rows.count, layout.dim, layout.state_begin,
                                         update.float32});
  }
}

}  // namespace sparring::kernels
