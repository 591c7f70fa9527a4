// A Table as a SparringStorage, by storage_border.h. A separate file, so that
// the callbacks are compiled once.
#ifndef SPARRING_ROCKSDB_TABLE_STORAGE_H_
#define SPARRING_ROCKSDB_TABLE_STORAGE_H_

#include <memory>
#include <string>

#include "sparring/storage_abi.h"
#include "table.h"

namespace sparring::flash {

// The struct is freed by its `release`. `distribution` identifies the provider, for example
// "sparring-rocksdb 0.1.0". Throws std::bad_alloc.
SparringStorage* make_storage(std::shared_ptr<Table> table, const std::string& distribution);

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_STORAGE_H_
