#include "kernels/initialize.h"

#include "kernels/halves.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

InitialValues values_of(const Initializer& spec, RowType type) {
  switch (type) {
    case RowType::float32:
    case RowType::int8:  // rounded afterwards
      return initial_values<float>(spec);
    case RowType::float64:
      return initial_values<double>(spec);
    case RowType::float16:
      return initial_values<Float16>(spec);
    case RowType::bfloat16:
      return initial_values<Bfloat16>(spec);
  }
  return {};
}

using InitializeLoop = void (*)(const InitializeArguments&, int64_t, int64_t);

InitializeLoop loop_of(RowType type) {
  switch (type) {
    case RowType::float32:
      return row_kernels<float>().initialize;
    case RowType::float64:
      return row_kernels<double>().initialize;
    case RowType::float16:
    case RowType::bfloat16:
    case RowType::int8:
      return narrow_kernels(type).initialize;
  }
  return nullptr;
}

}  // namespace

void initialize(const SparringExecutor* executor, const InitializerSpec& spec,
                const InitializeRows& rows) {
  const RowLayout& layout = rows.layout;
  const InitializeLoop loop = loop_of(layout.type);
  const InitializeArguments arguments{values_of(spec, layout.type), rows.keys,  rows.found,
                                      rows.state, rows.rows, layout.dim, layout.state_width,
                                      layout.state_begin, layout.row_bytes};
  // A value costs about as much time as moving 16 bytes.
  const int64_t grain = grain_for(16 * (layout.dim + layout.state_width));
  parallel_for(executor, rows.count, grain,
               [&](int64_t begin, int64_t end) { loop(arguments, begin, end); });
}

}  // namespace sparring::kernels
