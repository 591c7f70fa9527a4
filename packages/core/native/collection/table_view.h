// One table as the calls of a collection see it.
#ifndef SPARRING_COLLECTION_TABLE_VIEW_H_
#define SPARRING_COLLECTION_TABLE_VIEW_H_

#include "abi/storage_handle.h"
#include "kernels/initialize.h"
#include "kernels/row_layout.h"

namespace sparring::collection {

struct TableView {
  kernels::RowLayout layout;
  kernels::InitializerSpec initializer;
  // NULL while the table has no storage: then no key has a row.
  const abi::StorageHandle* storage = nullptr;
  // The container was closed: nothing may be looked up by number any more.
  bool is_closed = false;
};

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_TABLE_VIEW_H_
