#include "exchange/place.h"

#include <cstring>

#include "kernels/parallel.h"

namespace sparring::exchange {

using kernels::grain_for;
using kernels::parallel_for;

void place_rows(const SparringExecutor* executor, const void* rows, const int64_t* places,
                int64_t count, int64_t row_bytes, void* out) {
  const auto* const from = static_cast<const char*>(rows);
  auto* const to = static_cast<char*>(out);
  const auto size = static_cast<size_t>(row_bytes);
  parallel_for(executor, count, grain_for(2 * row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(to + places[i] * row_bytes, from + i * row_bytes, size);
    }
  });
}

}  // namespace sparring::exchange
