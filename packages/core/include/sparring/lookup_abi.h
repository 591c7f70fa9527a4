/*
 * Lookups of whole batches for native callers that are built apart from core,
 * as the operations of a framework are.
 *
 * PURPOSE
 *   A caller has ids and memory for embeddings. Core finds the rows through the
 *   storage ABI, makes initial values for ids without a row, and sums bags. It
 *   needs no Python interpreter, unless the storage is written in Python.
 *
 * FINDING IT
 *   `sparring._native.lookups()` is a PyCapsule named SPARRING_LOOKUPS_CAPSULE
 *   with a SparringLookups that lives as long as the process. What is looked up
 *   in has a number, `sparring._native.Publication.number`, which is valid for the
 *   life of that object. A number that is not valid any more is
 *   answered by SPARRING_CLOSED, as is a table whose container was closed.
 *
 * VERSIONS, ERRORS
 *   As in storage_abi.h: members are only ever appended; a status other than
 *   SPARRING_OK comes with a message that `error.release` frees.
 *
 * THREADS
 *   Calls may run at the same time as each other, but not while a step changes
 *   the same tables: the caller that drives steps ensures that. They wait while a
 *   load replaces rows of these tables; where one was cut short, SPARRING_CLOSED
 *   is the answer.
 */
#ifndef SPARRING_LOOKUP_ABI_H_
#define SPARRING_LOOKUP_ABI_H_

#include "sparring/storage_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPARRING_LOOKUPS_ABI_MAJOR 1u
#define SPARRING_LOOKUPS_ABI_MINOR 0u
#define SPARRING_LOOKUPS_CAPSULE "sparring.lookups"

/* What tables compute in; 16-bit tables in float32. */
enum { SPARRING_FLOAT32 = 1, SPARRING_FLOAT64 = 2 };

/* One embedding for each id, of a collection of one feature. */
typedef struct SparringGather {
  uint64_t struct_bytes;
  int64_t count;      /* n                               */
  const int64_t* ids; /* (n) int64; they may repeat      */
  int64_t dim;        /* of the table: checked           */
  int32_t type;       /* of `out`: checked               */
  void* out;          /* out (n, dim)                    */
  SparringError error;
} SparringGather;

/* One embedding for each bag of each feature, side by side. */
typedef struct SparringPool {
  uint64_t struct_bytes;
  int64_t num_features;   /* of the collection: checked                     */
  int64_t num_bags;       /* b, of each feature                             */
  int64_t count;          /* n                                              */
  const int64_t* ids;     /* (n) int64, feature after feature, bag after bag */
  const int64_t* lengths; /* (num_features, b): ids in each bag; sum is n   */
  const void* weights;    /* (n) of `type`, or NULL                         */
  int64_t width;          /* sum of the features' dims: checked             */
  int32_t type;           /* of `out` and `weights`: checked                */
  void* out;              /* out (b, width); an empty bag is zeros          */
  SparringError error;
} SparringPool;

typedef struct SparringLookups {
  SparringVersion version; /* first, for ever */
  uint64_t struct_bytes;
  SparringStatus (*gather)(int64_t collection, SparringGather*);
  SparringStatus (*pool)(int64_t collection, SparringPool*);
} SparringLookups;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_LOOKUP_ABI_H_ */
