/*
 * Reads serving snapshots: immutable files that are mapped, looked up and pooled
 * without Python, a framework or CUDA. docs/format/packed.md describes the files.
 *
 * PURPOSE
 *   A program opens a serving snapshot, looks up rows of ids, and switches to newer
 *   versions while lookups continue. One call of `sparring_packed_lookup` or
 *   `sparring_packed_pool` reads a single version for all of its requests.
 *
 * VERSIONS OF THIS HEADER
 *   As in storage_abi.h: members are only appended, and every struct starts with a
 *   SparringCall whose `struct_bytes` is the size of the struct that the caller knows.
 *   Zero every struct before use, then set call.struct_bytes and call.device.
 *
 * THREADS
 *   All functions except `sparring_packed_close` may run at the same time, on any
 *   thread. Readers take no lock: a refresh maps the new version first, and then
 *   replaces the current one with an atomic store; the old version is unmapped after its
 *   last reader has finished. Refreshes are serialized. Lookup and pool use the threads of
 *   `call.executor`; if it is NULL, they run only on the calling thread.
 *
 * ERRORS
 *   Functions return a status, and set a message in `call.error`, which
 *   `call.error.release` frees, as in storage_abi.h. After an error the output arrays are
 *   undefined, and the current version remains in use.
 *
 * IDS
 *   Every int64 is a valid id. Ids may be in any order and may repeat.
 */
#ifndef SPARRING_PACKED_H_
#define SPARRING_PACKED_H_

#include "sparring/storage_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SPARRING_PACKED_API __attribute__((visibility("default")))
#else
#define SPARRING_PACKED_API
#endif

/* Dtypes of stored elements. int8 and int4 rows have a float16 scale and a float16
 * bias after their elements: element = scale * q + bias. */
enum {
  SPARRING_PACKED_FLOAT32 = 0,
  SPARRING_PACKED_FLOAT16 = 1,
  SPARRING_PACKED_BFLOAT16 = 2,
  SPARRING_PACKED_INT8 = 3,
  SPARRING_PACKED_INT4 = 4,
  SPARRING_PACKED_STORED = -1 /* for a call: rows in their stored dtype */
};

/* Which bytes are hashed before use. With both values, malicious bytes can cause
 * wrong values and errors, but never a read outside of a file. */
enum {
  SPARRING_PACKED_VERIFY_ALL = 0, /* every byte; takes as long as reading the files        */
  SPARRING_PACKED_VERIFY_OPEN = 1 /* manifest, sizes and headers; independent of the size  */
};

/* Value of an id without a row. */
enum {
  SPARRING_PACKED_INITIAL = 0, /* its initial value, as in training */
  SPARRING_PACKED_ZEROS = 1
};

typedef struct SparringPacked SparringPacked; /* open serving snapshots of one folder */

/* ---- opening ------------------------------------------------------------ */

typedef struct SparringPackedOpen {
  SparringCall call;
  const char* path;        /* of a serving snapshot, or of a folder, whose newest is used
                              unless its gate.json pins another one                      */
  int32_t verify;          /* SPARRING_PACKED_VERIFY_*                                   */
  int32_t keep_versions;   /* number of versions that a lookup may request, 1 to 8; 0: 2 */
  int32_t partition_begin; /* partitions to map, [begin, end); both 0: all. An id of     */
  int32_t partition_end;   /* another partition causes SPARRING_INVALID_ARGUMENT         */
  SparringPacked* packed;  /* out */
} SparringPackedOpen;

SPARRING_PACKED_API SparringStatus sparring_packed_open(SparringPackedOpen*);

/* Unmaps all files. REQUIRES: no other call is in progress or follows. */
SPARRING_PACKED_API void sparring_packed_close(SparringPacked*);

/*
 * Switches to a newer version, or to the pinned one. A full one replaces all files; a delta is added to the
 * newest version of this handle, so that only its own files are mapped.
 * A delta with another base (a gap), other tables, and damage cause an error, and the
 * current version remains in use.
 */
typedef struct SparringPackedRefresh {
  SparringCall call;
  const char* path;   /* of a serving snapshot, or of a folder, as when opening;
                         NULL: the path that was opened                               */
  int32_t verify;     /* SPARRING_PACKED_VERIFY_*                                     */
  int32_t is_changed; /* out: 0 if the current version is already the requested one   */
} SparringPackedRefresh;

SPARRING_PACKED_API SparringStatus sparring_packed_refresh(SparringPacked*, SparringPackedRefresh*);

/* State of the gate of a folder, its file gate.json. A damaged file is an error here, and has no effect
 * on opening and refreshing. */
typedef struct SparringPackedGate {
  SparringCall call;
  const char* path;   /* of a folder of serving snapshots                             */
  int32_t exists;     /* out: 0 if there is no file                                   */
  int32_t is_closed;  /* out: 1 if newer versions are withheld                        */
  double since;       /* out: time of the last change, seconds since 1970             */
  char pin[256];      /* out: name of the version to use; empty: the newest           */
  char pinned_by[16]; /* out: gate or operator; empty without a pin                   */
  char reason[1024];  /* out: UTF-8; empty: none                                      */
} SparringPackedGate;

SPARRING_PACKED_API SparringStatus sparring_packed_gate(SparringPackedGate*);

/* Compares the hashes of all bytes of the newest version with its manifests. */
typedef struct SparringPackedVerify {
  SparringCall call;
} SparringPackedVerify;

SPARRING_PACKED_API SparringStatus sparring_packed_verify(SparringPacked*, SparringPackedVerify*);

/* ---- versions and tables --------------------------------------------------- */

/* One of the versions that are kept. `back` 0 is the newest, 1 the previous one, ... */
typedef struct SparringPackedVersion {
  SparringCall call;
  int32_t back;
  int32_t num_versions;  /* out: number of versions that are kept       */
  int32_t num_tables;    /* out                                         */
  int32_t num_layers;    /* out: number of deltas, plus 1 for the full snapshot */
  int64_t step;          /* out: training step                          */
  double published;      /* out: time of writing, seconds since 1970    */
  uint64_t mapped_bytes; /* out                                         */
  char hash[33];         /* out: hash of its manifest, hexadecimal      */
  char name[256];        /* out: name of its folder                     */
  int64_t generation;    /* out: versions of a folder are ordered by generation, step and name */
} SparringPackedVersion;

SPARRING_PACKED_API SparringStatus sparring_packed_version(SparringPacked*, SparringPackedVersion*);

/* One table of the newest version. The number of a table is valid until close. */
typedef struct SparringPackedTable {
  SparringCall call;
  int32_t table;         /* 0 to num_tables - 1                                      */
  int32_t dim;           /* out: number of elements of an embedding                  */
  int32_t dtype;         /* out: dtype of stored rows                                */
  int32_t trained_dtype; /* out: in training: FLOAT32, FLOAT16, BFLOAT16 or INT8     */
  int64_t row_bytes;     /* out: size of a stored row, including its scale and bias  */
  int64_t num_rows;      /* out: number of rows; an upper bound for several layers   */
  const char* name;      /* out: UTF-8; valid until close                            */
} SparringPackedTable;

SPARRING_PACKED_API SparringStatus sparring_packed_table(SparringPacked*, SparringPackedTable*);

/*
 * Creates a second handle that reads only the newest version of this one, also after a refresh. It
 * reads no file. Close it with sparring_packed_close; it remains valid after this handle is closed.
 */
typedef struct SparringPackedPin {
  SparringCall call;
  SparringPacked* pinned; /* out */
} SparringPackedPin;

SPARRING_PACKED_API SparringStatus sparring_packed_pin(SparringPacked*, SparringPackedPin*);

/*
 * Describes one of the files of the model in a version, and reads a part of it. A version that
 * contains only rows has no such file: then `num_files` is 0, and the other results are not set.
 */
typedef struct SparringPackedModel {
  SparringCall call;
  const char* version; /* as in a lookup                                         */
  int32_t file;        /* 0 to num_files - 1                                     */
  int32_t num_files;   /* out                                                    */
  uint64_t begin;      /* offset of the first byte to read                       */
  uint64_t capacity;   /* maximum number of bytes to read                        */
  uint8_t* bytes;      /* out (count); or NULL                                   */
  uint64_t count;      /* out: number of bytes that were read                    */
  uint64_t size_bytes; /* out: size of the file                                  */
  char kind[32];       /* out: "parameters" or "preprocessing"                   */
  char name[256];      /* out: name of the file                                  */
  char hash[33];       /* out: xxh3-128 of the file, hexadecimal                 */
  int64_t step;        /* out: of the version                                    */
  char version_hash[33]; /* out: of the version                                  */
} SparringPackedModel;

SPARRING_PACKED_API SparringStatus sparring_packed_model(SparringPacked*, SparringPackedModel*);

/* ---- reading --------------------------------------------------------------- */

/* Ids of one table to look up. */
typedef struct SparringPackedRequest {
  int32_t table;
  int32_t is_mean;        /* pool: divide each sum by the number of ids in the bag */
  int64_t count;          /* n                                                   */
  const int64_t* ids;     /* (n) int64                                           */
  void* rows;             /* out: lookup (n, row_stride) bytes; pool (b, row_stride) */
  uint64_t row_stride;    /* distance between rows in bytes; 0: contiguous       */
  uint8_t* found;         /* out (n): 1 if the id has a row; or NULL             */
  int64_t num_bags;       /* pool: b                                             */
  const int64_t* offsets; /* pool: (b + 1), non-decreasing, from 0 to n          */
  const float* weights;   /* pool: (n), or NULL if all are 1                     */
} SparringPackedRequest;

typedef struct SparringPackedLookup {
  SparringCall call;
  int32_t dtype;       /* SPARRING_PACKED_FLOAT32 or SPARRING_PACKED_STORED          */
  int32_t missing;     /* SPARRING_PACKED_INITIAL or SPARRING_PACKED_ZEROS           */
  const char* version; /* hash of a version that is kept; NULL: the newest           */
  int64_t num_requests;
  const SparringPackedRequest* requests; /* (num_requests)                           */
  int64_t step;        /* out: of the version that was read                          */
  double published;    /* out: of this version                                       */
  char hash[33];       /* out: of this version                                       */
} SparringPackedLookup;

/* Looks up rows (n, dim). */
SPARRING_PACKED_API SparringStatus sparring_packed_lookup(SparringPacked*, SparringPackedLookup*);

/* Returns sums or means (b, dim) float32 of bags, added in the order of the ids. */
SPARRING_PACKED_API SparringStatus sparring_packed_pool(SparringPacked*, SparringPackedLookup*);

/*
 * Reads one chunk of all rows of a table in one version. Start with a zeroed cursor, and
 * pass the struct again until `is_done`. Every id is returned once.
 */
typedef struct SparringPackedScan {
  SparringCall call;
  const char* version; /* as in a lookup                                    */
  int32_t table;
  int32_t dtype;       /* as in a lookup                                    */
  uint64_t cursor[2];  /* in, out                                           */
  int64_t capacity;    /* maximum number of rows, at least 1                */
  int64_t count;       /* out: number of rows                               */
  int64_t* ids;        /* out (capacity)                                    */
  void* rows;          /* out (capacity) contiguous rows; or NULL           */
  int32_t is_done;     /* out                                               */
} SparringPackedScan;

SPARRING_PACKED_API SparringStatus sparring_packed_scan(SparringPacked*, SparringPackedScan*);

/* Converts stored rows to float32, for example those of a lookup with SPARRING_PACKED_STORED. */
typedef struct SparringPackedWiden {
  SparringCall call;
  int32_t dtype;      /* of the rows                                               */
  int32_t dim;
  int64_t count;      /* n                                                         */
  const void* rows;   /* (n) contiguous rows                                       */
  uint64_t num_bytes; /* n times 4 dim, 2 dim, 2 dim, dim + 4, or (dim + 1) / 2 + 4 by dtype */
  float* out;         /* out (n, dim)                                              */
} SparringPackedWiden;

SPARRING_PACKED_API SparringStatus sparring_packed_widen(SparringPackedWiden*);

/* ---- top k ------------------------------------------------------------------- */

typedef struct SparringPackedBest {
  int64_t id;
  float score;
  uint32_t reserved;
} SparringPackedBest;

/*
 * Selects the k best rows for each of q queries, from rows that are passed in blocks: a larger
 * score is better, the smaller id wins for equal scores, and NaN is never selected. No open
 * snapshot is needed; the rows may be those of a scan.
 *
 * The score of a row is the sum of its start and its products with the query, in the order of the
 * elements, each product fused with the addition. It has the same bits on every CPU, for any blocks
 * and any number of threads.
 *
 * Zero `counts` before the first block, and pass the same arrays with each block. `is_last`
 * sorts the result, the best first, and leaves at most k; the last call may have no rows.
 */
typedef struct SparringPackedSelect {
  SparringCall call;
  int64_t num_queries;             /* q                                                 */
  int64_t num_rows;                /* n: number of rows of this block                   */
  const int64_t* ids;              /* (n), each in only one block                       */
  int64_t dim;
  const float* queries;            /* (q, dim)                                          */
  const float* rows;               /* (n, dim)                                          */
  const float* starts;             /* (n), or NULL if all are 0                         */
  const int64_t* excluded;         /* excluded ids, ascending per query; or NULL        */
  const int64_t* excluded_offsets; /* (q + 1): offsets of the queries in `excluded`     */
  int64_t k;                       /* at least 1                                        */
  int64_t capacity;                /* more than k; 2 k is fast                          */
  SparringPackedBest* best;        /* in, out (q, capacity)                             */
  int64_t* counts;                 /* in, out (q): number of elements of `best`         */
  int32_t is_last;
} SparringPackedSelect;

SPARRING_PACKED_API SparringStatus sparring_packed_select(SparringPackedSelect*);

/* Returns the SIMD level: the fastest of "portable", "avx2" and "avx512" that this CPU supports,
 * or the value of the environment variable SPARRING_SIMD. Results are bit-identical. */
SPARRING_PACKED_API const char* sparring_packed_simd_level(void);

/* Sets the level for all threads. Returns 0 if the level is not supported. */
SPARRING_PACKED_API int32_t sparring_packed_set_simd_level(const char* name);

/* Returns the id of a string of `size` bytes like `sparring.hash_strings`: XXH3 with 64 bits,
 * without a seed. Text is UTF-8. `bytes` may be NULL if `size` is 0. */
SPARRING_PACKED_API int64_t sparring_hash_string(const char* bytes, size_t size);

/* ---- writing ----------------------------------------------------------------- */

/*
 * Writes one data file to memory. Call it with `file` NULL to get `file_bytes`, then
 * with a buffer of this size. `sparring_packed.write` in Python writes whole snapshots.
 */
typedef struct SparringPackedPack {
  SparringCall call;
  const char* table;       /* name of the table                                    */
  int64_t count;           /* n                                                    */
  const int64_t* ids;      /* (n) int64, unique                                    */
  const void* embeddings;  /* (n, dim) of `source_dtype`, INT8: (n, dim + 2) bytes of
                              rows of core, STORED: rows of `dtype`, which are copied;
                              NULL: only erased keys                               */
  uint64_t source_stride;  /* distance between embeddings in bytes                 */
  int32_t source_dtype;    /* FLOAT32, FLOAT16, BFLOAT16, INT8 or STORED           */
  int32_t dtype;           /* dtype of stored rows                                 */
  int32_t dim;
  int32_t partition_begin; /* partitions of the ids, [begin, end)                  */
  int32_t partition_end;
  uint64_t file_bytes;     /* in: size of the buffer; out: size of the file        */
  void* file;
  double square_error;     /* out: sum of squared rounding errors                  */
  double square_sum;       /* out: sum of squares of the embeddings                */
} SparringPackedPack;

SPARRING_PACKED_API SparringStatus sparring_packed_pack(SparringPackedPack*);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_PACKED_H_ */
