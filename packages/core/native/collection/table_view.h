// One table as the calls of a collection see it.
#ifndef SPARRING_COLLECTION_TABLE_VIEW_H_
#define SPARRING_COLLECTION_TABLE_VIEW_H_

#include "abi/storage_handle.h"
#include "kernels/initialize.h"
#include "kernels/row_layout.h"

namespace sparring::collection {

// Whether all rows of a table are there.
enum class Rows {
  whole,
  coming,     // a load replaces them
  cut_short,  // a load did not end: rows may be missing
};

struct TableView {
  kernels::RowLayout layout;
  kernels::InitializerSpec initializer;
  // NULL while the table has no storage: then no key has a row.
  const abi::StorageHandle* storage = nullptr;
  // The container was closed: nothing may be looked up by number any more.
  bool is_closed = false;
  // Only for lookups by number; see published.h.
  Rows rows = Rows::whole;
};

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_TABLE_VIEW_H_
