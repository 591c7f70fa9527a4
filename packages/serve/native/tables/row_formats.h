// Rows in the formats of replies, and found bits; bit-identical to sparring_serve.wire.rows.
#ifndef SPARRING_SERVE_TABLES_ROW_FORMATS_H_
#define SPARRING_SERVE_TABLES_ROW_FORMATS_H_

#include <cstdint>

namespace sparring::serve {

// RowDtype of lookup.proto.
enum RowDtype : int64_t { kFloat32 = 0, kFloat16 = 1, kInt8 = 2 };

// Missing of lookup.proto.
enum Missing : int64_t { kInitial = 0, kZero = 1, kOnlyFound = 2 };

// Size of an encoded row.
constexpr int64_t encoded_row_bytes(int64_t dim, int64_t dtype) {
  return dtype == kFloat32 ? 4 * dim : dtype == kFloat16 ? 2 * dim : dim + 4;
}

// Encodes rows. float16 overflows to infinity; int8 has a scale and a bias per row, as in serving
// snapshots: scale = (maximum - bias) / 255, and the bias is the minimum; both are rounded to float16.
void encode_rows(const float* rows,  // (count, dim) float32, host
                 int64_t count, int64_t dim, int64_t dtype,
                 char* out);  // (count, encoded_row_bytes), host

// Writes one bit per id, the first in the lowest bit; returns the number of ids that were found.
int64_t pack_found(const uint8_t* found,  // (count) 0 or 1, host; readable up to 7 bytes further
                   int64_t count,
                   char* out);  // ((count + 7) / 8), host

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_TABLES_ROW_FORMATS_H_
