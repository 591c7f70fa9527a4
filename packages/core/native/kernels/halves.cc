#include "kernels/halves.h"

#include <algorithm>

#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

constexpr int64_t kHalvesBlock = 64;

// Calls body(first row, pointers, count) for blocks of [begin, end).
template <class Body>
void each_block(const NarrowRows& rows, int64_t begin, int64_t end, const Body& body) {
  auto* const first = static_cast<char*>(rows.first);
  void* pointers[kHalvesBlock];
  for (int64_t at = begin; at < end; at += kHalvesBlock) {
    const int64_t part = std::min(kHalvesBlock, end - at);
    for (int64_t i = 0; i < part; ++i) pointers[i] = first + (at + i) * rows.stride;
    body(at, pointers, part);
  }
}

}  // namespace

const NarrowKernels& narrow_kernels(RowType type) {
  const LevelKernels& kernels = active_kernels();
  if (type == RowType::int8) return kernels.int8;
  return type == RowType::float16 ? kernels.float16 : kernels.bfloat16;
}

void decode(const SparringExecutor* executor, const NarrowRows& rows, float* out) {
  const NarrowKernels& loops = narrow_kernels(rows.type);
  parallel_for(executor, rows.count, grain_for(6 * rows.dim), [&](int64_t begin, int64_t end) {
    each_block(rows, begin, end, [&](int64_t at, void* const* pointers, int64_t part) {
      loops.gather_shown(pointers, part, rows.dim, out + at * rows.dim, rows.dim);
    });
  });
}

void encode(const SparringExecutor* executor, const float* embeddings, const Rounding& rounding,
            const NarrowRows& rows) {
  const NarrowKernels& loops = narrow_kernels(rows.type);
  parallel_for(executor, rows.count, grain_for(6 * rows.dim), [&](int64_t begin, int64_t end) {
    each_block(rows, begin, end, [&](int64_t at, void* const* pointers, int64_t part) {
      loops.encode({embeddings + at * rows.dim, pointers,
                    rounding.keys != nullptr ? rounding.keys + at : nullptr, rounding.seed,
                    rounding.step, part, rows.dim});
    });
  });
}

}  // namespace sparring::kernels
