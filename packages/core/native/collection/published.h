// Collections that native callers use by number; see sparring/lookup_abi.h.
#ifndef SPARRING_COLLECTION_PUBLISHED_H_
#define SPARRING_COLLECTION_PUBLISHED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "collection/table_view.h"
#include "sparring/lookup_abi.h"

namespace sparring::collection {

struct PublishedFeature {
  const TableView* table;
  int64_t column;  // in the output of a pooled lookup
  bool is_mean;
};

struct Published {
  std::vector<PublishedFeature> features;
  int64_t width;
};

// Returns a number that was never used before.
int64_t new_number();

// Makes `number` refer to `collection`, until it is replaced or withdrawn.
// REQUIRES: its tables live until then. Waits for lookups, like `withdraw`.
void publish(int64_t number, Published collection);

// Returns when no lookup uses the collection. Call it without the GIL, because a lookup in a
// storage that is written in Python waits for the GIL.
void withdraw(int64_t number);

// Lookups by `number` fail with `reason` until it is published again. Waits like `withdraw`.
void refuse_lookups(int64_t number, std::string reason);

// Begins a load of `table`: lookups by number in it wait from now on. Returns when no lookup is in
// progress. Call it without the GIL, like `withdraw`.
void begin_load(TableView& table);

// Ends a load: waiting lookups continue; if the load was interrupted, they fail.
void end_load(TableView& table, bool is_whole);

// The functions for native callers, which live as long as the process.
const SparringLookups* lookups();

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_PUBLISHED_H_
