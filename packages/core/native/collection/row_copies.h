// Copies the rows of a plan for an update by the caller, and writes them back, without a second
// search for their keys.
#ifndef SPARRING_COLLECTION_ROW_COPIES_H_
#define SPARRING_COLLECTION_ROW_COPIES_H_

#include <cstddef>
#include <cstdint>

#include "abi/storage_handle.h"
#include "collection/plan.h"

namespace sparring::collection {

// The rows of some keys, from a plan.
struct KeyRows {
  const abi::StorageHandle* storage;
  int64_t count;               // u
  const int64_t* keys;         // (u)
  const void* const* handles;  // (u) of `generation`
  uint64_t generation;
};

// rows (u, row_bytes): whole rows, zeros for keys without a row; found (u).
// Throws StorageError, std::bad_alloc.
void copy_rows(const SparringExecutor* executor, const KeyRows& keys, std::byte* rows,
               uint8_t* found);

// Replaces or inserts rows (u, row_bytes) like an upsert; returns the evicted rows.
// Throws StorageError, std::bad_alloc.
abi::EvictedRows put_rows(const KeyRows& keys, const std::byte* rows);

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_ROW_COPIES_H_
