#include "device_kernels/update.h"

#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "device_kernels/encode.h"
#include "device_kernels/update_methods.h"

namespace sparring::device_kernels {
namespace {

constexpr std::array<std::pair<std::string_view, UpdateMethod>, 12> kMethods = {{
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

// Worked out in double and rounded once, as core does.
template <class T>
UpdateConstants<T> constants_of(const Update& arguments) {
  const HyperParameters& hyper = arguments.hyper;
  const auto step = static_cast<double>(arguments.step);
  const double lr = arguments.method == UpdateMethod::adagrad
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
      .clip_value = rounded(hyper.clip_value),
      .clip_norm = rounded(hyper.clip_norm),
  };
}

template <UpdateMethod kMethod, class T>
struct Updates {
  static constexpr unsigned block_threads = kBlockThreads;
  UpdateConstants<T> constants;
  RowPlaces rows;
  T* embeddings;  // (count, dim), or NULL: they begin the rows
  T* gradients;
  const int64_t* positions;
  uint64_t count;
  int64_t dim;
  int64_t state_begin;

  SPARRING_DEVICE void operator()(const Block& block) const {
    const DotTile<T> tile(block);
    const uint64_t rounds = rounds_for(count, DotTile<T>::count(block));
    uint64_t i = DotTile<T>::in_grid(block);
    for (uint64_t round = 0; round < rounds; ++round, i += DotTile<T>::count(block)) {
      UpdatedRow<T> row{tile, nullptr, nullptr, nullptr, 0, static_cast<T>(dim)};
      if (i < count) {
        char* const bytes = rows.at(i);
        const int64_t from = positions != nullptr ? positions[i] : static_cast<int64_t>(i);
        row.embedding = embeddings != nullptr ? embeddings + static_cast<int64_t>(i) * dim
                                              : reinterpret_cast<T*>(bytes);
        row.state = reinterpret_cast<T*>(bytes + state_begin);
        row.gradient = gradients + from * dim;
        row.dim = dim;
      }
      update_row<kMethod>(constants, row);
    }
  }
};

template <UpdateMethod kMethod, class T>
void launch_update(Device& device, Stream stream, const Update& arguments, T* embeddings) {
  const auto count = static_cast<uint64_t>(arguments.count);
  launch(device, grid_for(device, count * DotTile<T>::num_lanes), stream,
         Updates<kMethod, T>{constants_of<T>(arguments), arguments.rows, embeddings,
                             static_cast<T*>(arguments.gradients), arguments.positions, count,
                             arguments.layout.dim, arguments.layout.state_begin});
}

template <class T, size_t... kNumbers>
void launch_method(Device& device, Stream stream, const Update& arguments, T* embeddings,
                   std::index_sequence<kNumbers...>) {
  const auto launch_if = [&]<UpdateMethod kMethod>() {
    if (arguments.method == kMethod) launch_update<kMethod>(device, stream, arguments, embeddings);
  };
  (launch_if.template operator()<static_cast<UpdateMethod>(kNumbers)>(), ...);
}

template <class T>
void update_as(Device& device, Stream stream, const Update& arguments, T* embeddings) {
  launch_method(device, stream, arguments, embeddings,
                std::make_index_sequence<kMethods.size()>{});
}

}  // namespace

bool update_method_named(std::string_view name, UpdateMethod* method) {
  for (const auto& each : kMethods) {
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

void update(Device& device, Stream stream, const Update& arguments) {
  if (arguments.count == 0) return;
  const RowLayout& layout = arguments.layout;
  if (layout.type == RowType::float64) {
    return update_as<double>(device, stream, arguments, nullptr);
  }
  if (layout.type == RowType::float32) return update_as<float>(device, stream, arguments, nullptr);
  const HalfRows rows{layout.type, arguments.rows, arguments.count, layout.dim};
  decode(device, stream, rows, arguments.decoded);
  update_as(device, stream, arguments, arguments.decoded);
  encode(device, stream, arguments.decoded,
         {arguments.keys, arguments.positions, arguments.rounding_seed, arguments.step}, rows);
}

}  // namespace sparring::device_kernels
