#include "kernels/update.h"

#include <algorithm>

#include "kernels/halves.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

template <class T>
UpdateConstants<T> constants_of(const UpdateSpec& spec) {
  return updates::constants_of<T>(spec.method, spec.hyper, spec.step);
}

// Decodes rows, `block` of them at a time, applies the method, and rounds them back.
// own (block, dim), followed by (block, state_width) for int8 rows.
void update_decoded(const PreparedUpdate& update, const UpdateRows& rows, float* own,
                    int64_t block) {
  const UpdateSpec& spec = update.spec;
  const int64_t dim = spec.layout.dim;
  const NarrowKernels& loops = narrow_kernels(spec.layout.type);
  const RowKernels<float>& methods = row_kernels<float>();
  auto* const gradients = static_cast<float*>(rows.gradients);
  for (int64_t at = 0; at < rows.count; at += block) {
    const int64_t part = std::min(block, rows.count - at);
    loops.gather_shown(rows.rows + at, part, dim, own, dim);
    UpdateArguments<float> arguments{rows.rows + at, own, gradients + at * dim, part, dim,
                                     spec.layout.state_begin, update.float32};
    const StateArguments states{rows.rows + at, own + block * dim, rows.keys + at,
                                spec.rounding_seed, spec.step, part, dim,
                                spec.layout.state_width, spec.layout.state_begin};
    const bool has_encoded_state = spec.layout.type == RowType::int8 && states.state_width > 0;
    if (has_encoded_state) {
      active_kernels().decode_states(states);
      arguments.states = states.states;
      arguments.state_width = states.state_width;
    }
    methods.update(spec.method, arguments);
    loops.encode({own, rows.rows + at, rows.keys + at, spec.rounding_seed, spec.step, part, dim});
    if (has_encoded_state) active_kernels().encode_states(states);
  }
}

// On the stack, because updates of rows must not fail. Methods have at most 2 * dim elements of state.
constexpr int64_t kMostNear = 4096;
constexpr int64_t kMostDim = 65'536;

[[gnu::noinline]] void update_wide_narrow(const PreparedUpdate& update, const UpdateRows& rows) {
  alignas(64) float own[3 * kMostDim];
  update_decoded(update, rows, own, 1);
}

void update_narrow(const PreparedUpdate& update, const UpdateRows& rows) {
  const RowLayout& layout = update.spec.layout;
  const int64_t width = layout.dim + (layout.type == RowType::int8 ? layout.state_width : 0);
  if (width > kMostNear) return update_wide_narrow(update, rows);
  alignas(64) float own[kMostNear];
  update_decoded(update, rows, own, kMostNear / width);
}

}  // namespace

PreparedUpdate::PreparedUpdate(const UpdateSpec& spec)
    : spec(spec), float32(constants_of<float>(spec)), float64(constants_of<double>(spec)) {}

void update_rows(const PreparedUpdate& update, const UpdateRows& rows) {
  const auto& [method, layout, hyper, step, seed] = update.spec;
  if (is_narrow(layout.type)) {
    update_narrow(update, rows);
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
