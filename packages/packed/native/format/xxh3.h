// XXH3 with 128 bits for inputs over 240 bytes, which is sufficient for serving snapshots.
// Collet, "xxHash", XXH3_128bits without a seed; the tests compare it with the xxhash package.
#ifndef SPARRING_PACKED_FORMAT_XXH3_H_
#define SPARRING_PACKED_FORMAT_XXH3_H_

#include <cstdint>
#include <string>

namespace sparring::packed {

inline constexpr uint64_t kLeastHashedBytes = 241;

// Returns 32 hexadecimal digits, like `xxhsum -H2`. REQUIRES: size >= kLeastHashedBytes.
std::string xxh3_128(const void* data, uint64_t size);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_XXH3_H_
