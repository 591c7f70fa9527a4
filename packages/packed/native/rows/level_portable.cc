// The portable level: vectors of 16 bytes, which all compilers support.
#include "rows/level.h"

#define SPARRING_LEVEL_LOOPS kPortableLoops

namespace sparring::packed {
namespace {

typedef float Floats __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kTileQueries = 4;

inline Floats load(const float* from) {
  Floats value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
inline void store(float* to, Floats value) { __builtin_memcpy(to, &value, sizeof value); }
inline void stream(float* to, Floats value) { store(to, value); }
inline Floats broadcast(float value) { return Floats{value, value, value, value}; }
inline Floats add(Floats a, Floats b) { return a + b; }
inline Floats fused(Floats a, Floats b, Floats c) {
  for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
inline unsigned at_least(Floats a, Floats b) {
  unsigned lanes = 0;
  for (int i = 0; i < kLanes; ++i) lanes |= (a[i] >= b[i] ? 1u : 0u) << i;
  return lanes;
}
Floats widen_half(const uint8_t* from);
inline Floats widen_bfloat(const uint8_t* from) {
  uint16_t halves[kLanes];
  __builtin_memcpy(halves, from, sizeof halves);
  uint32_t bits[kLanes];
  for (int i = 0; i < kLanes; ++i) bits[i] = static_cast<uint32_t>(halves[i]) << 16;
  Floats value;
  __builtin_memcpy(&value, bits, sizeof value);
  return value;
}
inline Floats widen_bytes(const uint8_t* from) {
  return Floats{static_cast<float>(from[0]), static_cast<float>(from[1]),
                static_cast<float>(from[2]), static_cast<float>(from[3])};
}
inline Floats widen_nibbles(const uint8_t* from) {
  return Floats{static_cast<float>(from[0] & 15), static_cast<float>(from[0] >> 4),
                static_cast<float>(from[1] & 15), static_cast<float>(from[1] >> 4)};
}

}  // namespace
}  // namespace sparring::packed

#include "rows/level_rows.inc"

namespace sparring::packed {
namespace {

inline Floats widen_half(const uint8_t* from) {
  return Floats{widen_one_half(read16(from)), widen_one_half(read16(from + 2)),
                widen_one_half(read16(from + 4)), widen_one_half(read16(from + 6))};
}

}  // namespace
}  // namespace sparring::packed
