/*
 * Lookups of whole batches for native callers that are built separately from
 * core, such as the operations of a framework.
 *
 * PURPOSE
 *   The caller provides ids and memory for embeddings. Core finds the rows
 *   through the storage ABI, computes initial values for ids without a row, and
 *   sums bags. It calls Python only if the storage is written in Python.
 *
 * FINDING IT
 *   `sparring._native.lookups()` returns a PyCapsule named
 *   SPARRING_LOOKUPS_CAPSULE with a SparringLookups that lives as long as the
 *   process. The tables of a lookup are identified by a number,
 *   `sparring._native.Publication.number`, which is valid as long as that object
 *   exists. Calls with another number, or with a table whose container was
 *   closed, return SPARRING_CLOSED.
 *
 * VERSIONS, ERRORS
 *   As in storage_abi.h: members are only appended, and a status other than
 *   SPARRING_OK comes with a message that `error.release` frees.
 *
 * THREADS
 *   Calls may run concurrently with each other, but not while a step changes
 *   the same tables; the code that drives steps ensures this. Calls wait while a
 *   load replaces rows of these tables. After an interrupted load they return
 *   SPARRING_CLOSED.
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

/* The computing dtype of a table; float32 for 16-bit tables. */
enum { SPARRING_FLOAT32 = 1, SPARRING_FLOAT64 = 2 };

/* One embedding per id, of a collection with one feature. */
typedef struct SparringGather {
  uint64_t struct_bytes;
  int64_t count;      /* n                               */
  const int64_t* ids; /* (n) int64; they may repeat      */
  int64_t dim;        /* of the table: checked           */
  int32_t type;       /* of `out`: checked               */
  void* out;          /* out (n, dim)                    */
  SparringError error;
} SparringGather;

/* One embedding per bag and feature; the features of a bag are concatenated. */
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
  SparringVersion version; /* always first */
  uint64_t struct_bytes;
  SparringStatus (*gather)(int64_t collection, SparringGather*);
  SparringStatus (*pool)(int64_t collection, SparringPool*);
} SparringLookups;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_LOOKUP_ABI_H_ */
