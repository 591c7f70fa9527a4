// Collections that native callers look up in by number; see sparring/lookup_abi.h.
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

// One that was never given before.
int64_t new_number();

// `number` finds `collection` from now on, until another takes its place or `withdraw`.
// REQUIRES: its tables live until then. As `withdraw`, it waits for lookups.
void publish(int64_t number, Published collection);

// Returns when no lookup uses the collection any more. A lookup in a storage that is
// written in Python waits for the GIL: call it without.
void withdraw(int64_t number);

// Lookups by `number` are refused with `reason` until it is published again. Waits as `withdraw`.
void refuse_lookups(int64_t number, std::string reason);

// A load replaces the rows of `table`: lookups by number in it wait from now on. Returns when none is
// under way. Call it without the GIL, as `withdraw`.
void begin_load(TableView& table);

// They go on; where the load did not end, they are refused.
void end_load(TableView& table, bool is_whole);

// What callers are given; lives as long as the process.
const SparringLookups* lookups();

}  // namespace sparring::collection

#endif  // SPARRING_COLLECTION_PUBLISHED_H_
