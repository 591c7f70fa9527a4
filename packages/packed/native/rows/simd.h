// Which SIMD level runs. All give the same bits; they differ in speed.
#ifndef SPARRING_PACKED_ROWS_SIMD_H_
#define SPARRING_PACKED_ROWS_SIMD_H_

#include "rows/level.h"

namespace sparring::packed {

// The loops in use: at first those that SPARRING_SIMD names, or else the fastest that
// this CPU has. Throws StatusError where the variable names a level that is not to be had.
const RowLoops& row_loops();

const char* simd_level();

// Returns false, and changes nothing, where there is no such level.
bool set_simd_level(const char* name);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_SIMD_H_
