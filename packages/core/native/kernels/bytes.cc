#include "kernels/bytes.h"

#include <algorithm>
#include <cstring>

#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

constexpr int64_t kBlock = 64;

// Calls loop(arguments) for blocks of rows.
template <class Loop>
void each_block(const SparringExecutor* executor, const RowLayout& layout, void* rows,
                int64_t count, float* states, const Rounding& rounding, const Loop& loop) {
  if (layout.state_width == 0) return;
  auto* const first = static_cast<char*>(rows);
  const int64_t grain = grain_for(5 * layout.state_width);
  parallel_for(executor, count, grain, [&](int64_t begin, int64_t end) {
    void* pointers[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t part = std::min(kBlock, end - at);
      for (int64_t i = 0; i < part; ++i) pointers[i] = first + (at + i) * layout.row_bytes;
      loop({pointers, states + at * layout.state_width,
            rounding.keys != nullptr ? rounding.keys + at : nullptr, rounding.seed, rounding.step,
            part, layout.dim, layout.state_width, layout.state_begin});
    }
  });
}

}  // namespace

void decode_states(const SparringExecutor* executor, const RowLayout& layout, const void* rows,
                   int64_t count, float* states) {
  each_block(executor, layout, const_cast<void*>(rows), count, states, {},
             active_kernels().decode_states);
}

void encode_states(const SparringExecutor* executor, const RowLayout& layout, const float* states,
                   const Rounding& rounding, int64_t count, void* rows) {
  each_block(executor, layout, rows, count, const_cast<float*>(states), rounding,
             active_kernels().encode_states);
}

std::vector<std::byte> stored_state(const RowLayout& layout, const void* state) {
  if (state == nullptr) return {};
  std::vector<std::byte> row(static_cast<size_t>(layout.row_bytes));
  if (layout.type == RowType::int8) {
    encode_states(nullptr, layout, static_cast<const float*>(state), {}, 1, row.data());
  } else {
    std::memcpy(row.data() + layout.state_begin, state,
                static_cast<size_t>(layout.row_bytes - layout.state_begin));
  }
  row.erase(row.begin(), row.begin() + layout.state_begin);
  return row;
}

}  // namespace sparring::kernels
