// Ids of many strings.
#ifndef SPARRING_KERNELS_HASH_STRINGS_H_
#define SPARRING_KERNELS_HASH_STRINGS_H_

#include <cstdint>

#include "sparring/storage_abi.h"

namespace sparring::kernels {

// ids[i] = hash_string of bytes[offsets[i], offsets[i + 1]). Offset is int32_t or int64_t.
template <class Offset>
void hash_strings(const SparringExecutor* executor,
                  const char* bytes,      // (offsets[count])
                  const Offset* offsets,  // (count + 1), nondecreasing
                  int64_t count,
                  int64_t* ids);          // (count), out

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_HASH_STRINGS_H_
