// Encodes embeddings as stored rows. It is a pure function of an embedding, so that base and
// delta agree, and so that a lookup of stored rows can also encode initial values.
//
// int8   element = scale * q + bias. The bias is the largest float16 that is not greater than
//        the minimum, the scale the smallest float16 with which 255 reaches the maximum: the
//        error of an element is at most half a scale, plus rounding of float32.
// int4   the same with 15, after a greedy search of the range (Guan et al., "Post-training
//        4-bit quantization on embedding tables", arXiv 1911.02079): the range is narrowed
//        in steps of 1/200, from the side that results in the smaller square error, and
//        the best range is used. Elements outside of it are clipped.
#ifndef SPARRING_PACKED_ROWS_QUANTIZE_H_
#define SPARRING_PACKED_ROWS_QUANTIZE_H_

#include <cstdint>

namespace sparring::packed {

// embedding (dim) → row, row_bytes_of(dtype, dim) bytes. Returns false if the dtype cannot
// represent it: a NaN or infinity for int8 and int4, elements beyond 65,504 for
// these and for fp16.
bool encode_row(int32_t dtype, const float* embedding, int64_t dim, uint8_t* row);

// Converts a trained embedding (dim) to float32. The source of int8 is a row of core: dim signed codes
// and a float16 scale. REQUIRES: `source_dtype` is not int4.
void decode_source(int32_t source_dtype, const void* embedding, int64_t dim, float* out);

// Converts an int8 row of core to a stored int8 row, exactly: the codes are shifted by 128, and the
// bias is -128 scales. Returns false if the scale is NaN.
bool convert_int8_row(const uint8_t* source, int64_t dim, uint8_t* row);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_QUANTIZE_H_
