// Rows of ids and sums of rows in one version.
#ifndef SPARRING_PACKED_READER_LOOKUP_H_
#define SPARRING_PACKED_READER_LOOKUP_H_

#include "reader/version.h"
#include "sparring_packed.h"

namespace sparring::packed {

struct LookupOptions {
  const SparringExecutor* executor;
  int32_t dtype;    // SPARRING_PACKED_FLOAT32 or SPARRING_PACKED_STORED
  int32_t missing;
};

// Both require validated requests. Ids of other partitions throw
// StatusError(SPARRING_INVALID_ARGUMENT), and damage throws SPARRING_CORRUPT.
void look_up(const Version& version, const LookupOptions& options,
             const SparringPackedRequest& request);
void pool(const Version& version, const LookupOptions& options,
          const SparringPackedRequest& request);

// Prefetches the first data of a request in the newest layer: the buckets of its ids, and, in a later
// call, their records. For requests with few ids, which are processed one after the other.
void prefetch_buckets(const Version& version, const SparringPackedRequest& request);
void prefetch_records(const Version& version, const SparringPackedRequest& request);

// Returns the index of the newest layer that contains the id as a row or as erased, or the number
// of layers if there is none.
size_t layer_of(const Table& table, int64_t id);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_LOOKUP_H_
