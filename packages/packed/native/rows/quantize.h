// Embeddings to stored rows. A pure function of an embedding, so that base and delta
// agree, and so that a missing id's row is stored bits too where those are asked for.
//
// int8   element = scale * q + bias. The bias is the largest float16 that is not above
//        the least element, the scale the least float16 with which 255 reaches the
//        largest: no element is off by more than half a scale, and rounding of float32.
// int4   the same with 15, after a greedy search of the range (Guan et al., "Post-training
//        4-bit quantization on embedding tables", arXiv 1911.02079): the range is narrowed
//        in steps of 1/200 of it, from the side that leaves the smaller square error, and
//        the best of all is kept. Elements outside of it read as its ends.
#ifndef SPARRING_PACKED_ROWS_QUANTIZE_H_
#define SPARRING_PACKED_ROWS_QUANTIZE_H_

#include <cstdint>

namespace sparring::packed {

// embedding (dim) → row, row_bytes_of(dtype, dim) bytes. Returns false where no row of
// the dtype holds it: a NaN or infinity for int8 and int4, elements beyond 65,504 for
// these and for fp16.
bool encode_row(int32_t dtype, const float* embedding, int64_t dim, uint8_t* row);

// embedding (dim): as `source_dtype` stores it, as float32. REQUIRES: not a quantized one.
void decode_source(int32_t source_dtype, const void* embedding, int64_t dim, float* out);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_QUANTIZE_H_
