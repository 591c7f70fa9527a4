// XXH3, 128 bits, of inputs over 240 bytes: all that a serving snapshot needs of it.
// Collet, "xxHash", XXH3_128bits without a seed; the tests compare with the xxhash package.
#ifndef SPARRING_PACKED_FORMAT_XXH3_H_
#define SPARRING_PACKED_FORMAT_XXH3_H_

#include <cstdint>
#include <string>

namespace sparring::packed {

inline constexpr uint64_t kLeastHashedBytes = 241;

// 32 hexadecimal digits, as `xxhsum -H2` prints them. REQUIRES: size >= kLeastHashedBytes.
std::string xxh3_128(const void* data, uint64_t size);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_XXH3_H_
