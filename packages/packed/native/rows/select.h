// Selects the best scores of each query; sparring_packed.h contains the contract.
#ifndef SPARRING_PACKED_ROWS_SELECT_H_
#define SPARRING_PACKED_ROWS_SELECT_H_

#include "sparring_packed.h"

namespace sparring::packed {

// Throws StatusError(SPARRING_INVALID_ARGUMENT).
void select(SparringPackedSelect& arguments);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_SELECT_H_
