// The avx2 level; level.h has the rules.
#include "kernels/level.h"

#if defined(__x86_64__)

#define SPARRING_VECTOR_BYTES 32
#define SPARRING_LEVEL_TABLE kAvx2Kernels

// In this order: each relies on those before it.
// clang-format off
#include "kernels/level_vectors.inc"
#include "kernels/level_rows.inc"
#include "kernels/level_bloom.inc"
#include "kernels/level_philox.inc"
#include "kernels/level_halves.inc"
#include "kernels/level_bytes.inc"
#include "kernels/level_normal.inc"
#include "kernels/level_initialize.inc"
#include "kernels/level_shown.inc"
#include "kernels/level_update.inc"
#include "kernels/level_table.inc"

#endif  // defined(__x86_64__)
