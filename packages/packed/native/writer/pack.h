// Writes a data file to memory; layout.h describes the format.
#ifndef SPARRING_PACKED_WRITER_PACK_H_
#define SPARRING_PACKED_WRITER_PACK_H_

#include "sparring_packed.h"

namespace sparring::packed {

// Throws StatusError(SPARRING_INVALID_ARGUMENT) for a duplicate id, an id of another partition, an
// embedding that the dtype cannot represent, or a buffer that is too small.
void pack(SparringPackedPack& arguments);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_WRITER_PACK_H_
