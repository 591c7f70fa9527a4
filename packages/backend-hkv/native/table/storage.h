// A Table as a SparringStorage, by storage_border.h. A separate file, so that
// the callbacks are compiled once.
#ifndef SPARRING_HKV_TABLE_STORAGE_H_
#define SPARRING_HKV_TABLE_STORAGE_H_

#include <memory>
#include <string>

#include "sparring/storage_abi.h"
#include "table.h"

namespace sparring::hkv {

// The struct is freed by its `release`. `distribution` identifies the provider, for example
// "sparring-hkv 0.1.0". Throws std::bad_alloc.
SparringStorage* make_storage(std::unique_ptr<Table> table, const std::string& distribution);

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_STORAGE_H_
