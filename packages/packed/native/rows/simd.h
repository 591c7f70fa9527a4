// Selects the SIMD level. All levels give the same bits and differ in speed.
#ifndef SPARRING_PACKED_ROWS_SIMD_H_
#define SPARRING_PACKED_ROWS_SIMD_H_

#include "rows/level.h"

namespace sparring::packed {

// Returns the loops in use: initially those of the level in SPARRING_SIMD, or else the fastest
// that this CPU supports. Throws StatusError if the variable names an unsupported level.
const RowLoops& row_loops();

const char* simd_level();

// Returns false without a change if the level is not supported.
bool set_simd_level(const char* name);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_SIMD_H_
