// Rows of a plan, copied out for an update of the caller's and put back, without a second look
// at their keys.
#ifndef SPARRING_COLLECTION_ROW_COPIES_H_
#define SPARRING_COLLECTION_ROW_COPIES_H_

#include <cstddef>
#include <cstdint>

#include "abi/storage_handle.h"
#include "collection/plan.h"

namespace sparring::collection {

// The rows of some keys, as a plan knows them.
struct KeyRows {
  const abi::StorageHandle* storage;
  int64_t count;               // u
  const int64_t* keys;         // (u)
  const void* const* handles;  // (u) of `generation`
  uint64_t generation;
};

// rows (u, row_bytes): whole rows, zeros where a key has none; found (u).
// Throws StorageError, std::bad_alloc.
void copy_rows(const SparringExecutor* executor, const KeyRows& keys, std::byte* rows,
               uint8_t* found);

// Replaces or inserts rows (u, row_bytes), as an upsert does; returns what left to make room.
// Throws StorageError, std::bad_alloc.
abi::EvictedRows put_rows(const KeyRows& keys, const std::byte* rows);

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_ROW_COPIES_H_
