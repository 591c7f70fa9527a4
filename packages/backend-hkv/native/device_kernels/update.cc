#include "device_kernels/update.h"

#include <utility>

#include "device_kernels/encode.h"
#include "device_kernels/update_row.h"

namespace sparring::device_kernels {
namespace {

template <UpdateMethod kMethod, class T>
struct Updates {
  static constexpr unsigned block_threads = kBlockThreads;
  static constexpr bool is_batched = true;
  UpdateConstants<T> constants;
  RowPlaces rows;
  T* embeddings;  // (count, dim), or NULL: they are at the start of the rows
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
         Updates<kMethod, T>{updates::constants_of<T>(arguments.method, arguments.hyper,
                                                      arguments.step),
                             arguments.rows, embeddings,
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
                std::make_index_sequence<updates::kUpdateMethods.size()>{});
}

}  // namespace

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
