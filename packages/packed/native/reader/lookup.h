// Rows of ids, and sums of them, of one version.
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

// Both take requests that have been checked, but for ids of other partitions, which throw
// StatusError(SPARRING_INVALID_ARGUMENT), and damage, which throws SPARRING_CORRUPT.
void look_up(const Version& version, const LookupOptions& options,
             const SparringPackedRequest& request);
void pool(const Version& version, const LookupOptions& options,
          const SparringPackedRequest& request);

// Asks for what a request reads first, of the newest layer: the buckets of its ids, then, in a
// later call, their records. For requests of few ids, which are answered one after the other.
void prefetch_buckets(const Version& version, const SparringPackedRequest& request);
void prefetch_records(const Version& version, const SparringPackedRequest& request);

// The first layer, from the newest, that has the id as a row or as erased; the number of
// layers where none has.
size_t layer_of(const Table& table, int64_t id);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_LOOKUP_H_
