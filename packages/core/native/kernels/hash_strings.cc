#include "kernels/hash_strings.h"

#include <cstddef>

#include "kernels/parallel.h"
#include "sparring/hash_string.h"

namespace sparring::kernels {

template <class Offset>
void hash_strings(const SparringExecutor* executor, const char* bytes, const Offset* offsets,
                  int64_t count, int64_t* ids) {
  constexpr int64_t kShortString = 16;
  parallel_for(executor, count, grain_for(kShortString), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ids[i] = hash_string(bytes + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i]));
    }
  });
}

template void hash_strings(const SparringExecutor*, const char*, const int32_t*, int64_t, int64_t*);
template void hash_strings(const SparringExecutor*, const char*, const int64_t*, int64_t, int64_t*);

}  // namespace sparring::kernels
