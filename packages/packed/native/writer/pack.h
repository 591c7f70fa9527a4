// Makes the bytes of a data file; layout.h draws them.
#ifndef SPARRING_PACKED_WRITER_PACK_H_
#define SPARRING_PACKED_WRITER_PACK_H_

#include "sparring_packed.h"

namespace sparring::packed {

// Throws StatusError(SPARRING_INVALID_ARGUMENT): an id twice or of another partition, an
// embedding that the dtype cannot hold, too little room.
void pack(SparringPackedPack& arguments);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_WRITER_PACK_H_
