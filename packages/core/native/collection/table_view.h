// A view of one table for the calls of a collection.
#ifndef SPARRING_COLLECTION_TABLE_VIEW_H_
#define SPARRING_COLLECTION_TABLE_VIEW_H_

#include "abi/storage_handle.h"
#include "kernels/initialize.h"
#include "kernels/row_layout.h"

namespace sparring::collection {

// Whether all rows of a table are loaded.
enum class Rows {
  whole,
  coming,     // a load is replacing them
  cut_short,  // a load was interrupted: rows may be missing
};

struct TableView {
  kernels::RowLayout layout;
  kernels::InitializerSpec initializer;
  // NULL while the table has no storage, so that no key has a row.
  const abi::StorageHandle* storage = nullptr;
  // Whether the container was closed, so that lookups by number fail.
  bool is_closed = false;
  // Only for lookups by number; see published.h.
  Rows rows = Rows::whole;
};

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_TABLE_VIEW_H_
