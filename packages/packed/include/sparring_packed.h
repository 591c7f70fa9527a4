/*
 * Reads serving snapshots: immutable files that are mapped, looked up and pooled
 * without Python, a framework or CUDA. docs/format/packed.md draws the files.
 *
 * PURPOSE
 *   A program opens a serving snapshot, asks for the rows of ids, and takes newer
 *   versions while it answers. All calls of `sparring_packed_lookup` and
 *   `sparring_packed_pool` see one version over all their requests.
 *
 * VERSIONS OF THIS HEADER
 *   As in storage_abi.h: members are only ever appended, and every struct begins
 *   with a SparringCall whose `struct_bytes` says how much of it the caller knows.
 *   Zero every struct before use, then set call.struct_bytes and call.device.
 *
 * THREADS
 *   All functions but `sparring_packed_close` may run at the same time, on any
 *   thread. Readers take no lock: a refresh maps a new version aside, and swaps it
 *   in by one store; an old one is unmapped when its last reader has left.
 *   Refreshes wait for each other. `call.executor` lends threads to lookup and pool;
 *   NULL: they run on the calling thread alone.
 *
 * ERRORS
 *   A status, and a message in `call.error`, which `call.error.release` frees, as in
 *   storage_abi.h. After an error the output arrays are undefined, and the version
 *   that was served is served on.
 *
 * IDS
 *   Every int64 is a legal id. Ids come in any order and may repeat.
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

/* How elements are stored. int8 and int4 rows have a float16 scale and a float16
 * bias behind their elements: element = scale * q + bias. */
enum {
  SPARRING_PACKED_FLOAT32 = 0,
  SPARRING_PACKED_FLOAT16 = 1,
  SPARRING_PACKED_BFLOAT16 = 2,
  SPARRING_PACKED_INT8 = 3,
  SPARRING_PACKED_INT4 = 4,
  SPARRING_PACKED_STORED = -1 /* of a lookup: rows as they are stored */
};

/* What is hashed before it is used. Whatever is chosen, hostile bytes can give
 * wrong numbers and errors, and never a read outside of a file. */
enum {
  SPARRING_PACKED_VERIFY_ALL = 0, /* every byte, against the manifest: as long as reading takes */
  SPARRING_PACKED_VERIFY_OPEN = 1 /* manifest, sizes and headers: independent of the size       */
};

/* What an id without a row reads as. */
enum {
  SPARRING_PACKED_INITIAL = 0, /* its initial value, as in training */
  SPARRING_PACKED_ZEROS = 1
};

typedef struct SparringPacked SparringPacked; /* opened serving snapshots of one folder */

/* ---- opening ------------------------------------------------------------ */

typedef struct SparringPackedOpen {
  SparringCall call;
  const char* path;        /* of a serving snapshot, or of a folder of them: the newest  */
  int32_t verify;          /* SPARRING_PACKED_VERIFY_*                                   */
  int32_t keep_versions;   /* how many a lookup may name, 1 to 8; 0: 2                   */
  int32_t partition_begin; /* files of these partitions are mapped, [begin, end);        */
  int32_t partition_end;   /* both 0: all. An id of others is SPARRING_INVALID_ARGUMENT  */
  SparringPacked* packed;  /* out */
} SparringPackedOpen;

SPARRING_PACKED_API SparringStatus sparring_packed_open(SparringPackedOpen*);

/* Unmaps everything. REQUIRES: no other call under way, and none after. */
SPARRING_PACKED_API void sparring_packed_close(SparringPacked*);

/*
 * Takes a newer version. A full one replaces all files; a delta is put over the
 * newest version of this handle, so that only its own files are mapped.
 * A delta over another base (a gap), other tables, and damage are refused, and the
 * old version is served on.
 */
typedef struct SparringPackedRefresh {
  SparringCall call;
  const char* path;   /* of a serving snapshot, or of a folder of them: the newest;
                         NULL: as it was opened                                       */
  int32_t verify;     /* SPARRING_PACKED_VERIFY_*                                     */
  int32_t is_changed; /* out: 0: the version was the newest already                   */
} SparringPackedRefresh;

SPARRING_PACKED_API SparringStatus sparring_packed_refresh(SparringPacked*, SparringPackedRefresh*);

/* Hashes all bytes of the newest version, against its manifests. */
typedef struct SparringPackedVerify {
  SparringCall call;
} SparringPackedVerify;

SPARRING_PACKED_API SparringStatus sparring_packed_verify(SparringPacked*, SparringPackedVerify*);

/* ---- what is open --------------------------------------------------------- */

/* One of the versions that are kept. `back` 0 is the newest, 1 the one before it, … */
typedef struct SparringPackedVersion {
  SparringCall call;
  int32_t back;
  int32_t num_versions;  /* out: that are kept                          */
  int32_t num_tables;    /* out                                         */
  int32_t num_layers;    /* out: deltas over a full one, and that one   */
  int64_t step;          /* out: of training                            */
  double published;      /* out: when it was written, seconds since 1970 */
  uint64_t mapped_bytes; /* out                                         */
  char hash[33];         /* out: of its manifest; hexadecimal           */
  char name[256];        /* out: of its folder                          */
} SparringPackedVersion;

SPARRING_PACKED_API SparringStatus sparring_packed_version(SparringPacked*, SparringPackedVersion*);

/* One table of the newest version. Tables keep their numbers until the close. */
typedef struct SparringPackedTable {
  SparringCall call;
  int32_t table;         /* 0 to num_tables - 1                                      */
  int32_t dim;           /* out: elements of an embedding                            */
  int32_t dtype;         /* out: how rows are stored                                 */
  int32_t trained_dtype; /* out: of training: FLOAT32, FLOAT16 or BFLOAT16           */
  int64_t row_bytes;     /* out: of a stored row, its scale and bias included        */
  int64_t num_rows;      /* out: distinct ids of rows, if there is one layer; else a bound */
  const char* name;      /* out: UTF-8; until the close                              */
} SparringPackedTable;

SPARRING_PACKED_API SparringStatus sparring_packed_table(SparringPacked*, SparringPackedTable*);

/* ---- reading --------------------------------------------------------------- */

/* The ids that are wanted of one table. */
typedef struct SparringPackedRequest {
  int32_t table;
  int32_t is_mean;        /* pool: divide each sum by the ids of its bag         */
  int64_t count;          /* n                                                   */
  const int64_t* ids;     /* (n) int64                                           */
  void* rows;             /* out: lookup (n, row_stride) bytes; pool (b, row_stride) */
  uint64_t row_stride;    /* bytes from row to row; 0: rows follow one another   */
  uint8_t* found;         /* out (n): 1 where the id has a row; or NULL          */
  int64_t num_bags;       /* pool: b                                             */
  const int64_t* offsets; /* pool: (b + 1), never falling, from 0 to n           */
  const float* weights;   /* pool: (n), or NULL: all one                         */
} SparringPackedRequest;

typedef struct SparringPackedLookup {
  SparringCall call;
  int32_t dtype;       /* of rows: SPARRING_PACKED_FLOAT32 or SPARRING_PACKED_STORED */
  int32_t missing;     /* SPARRING_PACKED_INITIAL or SPARRING_PACKED_ZEROS           */
  const char* version; /* the hash of one that is kept; NULL: the newest             */
  int64_t num_requests;
  const SparringPackedRequest* requests; /* (num_requests)                           */
  int64_t step;        /* out: of the version that answered                          */
  double published;    /* out: of it                                                 */
  char hash[33];       /* out: of it                                                 */
} SparringPackedLookup;

/* Rows (n, dim) of ids. */
SPARRING_PACKED_API SparringStatus sparring_packed_lookup(SparringPacked*, SparringPackedLookup*);

/* Sums or means (b, dim) float32 of bags of ids, added up in the order of ids. */
SPARRING_PACKED_API SparringStatus sparring_packed_pool(SparringPacked*, SparringPackedLookup*);

/*
 * One chunk of all rows of a table of one version. Start with a zeroed cursor, and
 * pass the struct back until `is_done`. Every id is given once.
 */
typedef struct SparringPackedScan {
  SparringCall call;
  const char* version; /* as of a lookup                                    */
  int32_t table;
  int32_t dtype;       /* as of a lookup                                    */
  uint64_t cursor[2];  /* in, out                                           */
  int64_t capacity;    /* room in rows, at least 1                          */
  int64_t count;       /* out: rows given                                   */
  int64_t* ids;        /* out (capacity)                                    */
  void* rows;          /* out (capacity) rows, one after the other; or NULL */
  int32_t is_done;     /* out                                               */
} SparringPackedScan;

SPARRING_PACKED_API SparringStatus sparring_packed_scan(SparringPacked*, SparringPackedScan*);

/* Rows as they are stored, as float32: what a lookup of SPARRING_PACKED_STORED gave, elsewhere. */
typedef struct SparringPackedWiden {
  SparringCall call;
  int32_t dtype;      /* of the rows                                               */
  int32_t dim;
  int64_t count;      /* n                                                         */
  const void* rows;   /* (n) rows, one after the other                             */
  uint64_t num_bytes; /* of all of them: 4 dim, 2 dim, 2 dim, dim + 4, or (dim + 1) / 2 + 4 each */
  float* out;         /* out (n, dim)                                              */
} SparringPackedWiden;

SPARRING_PACKED_API SparringStatus sparring_packed_widen(SparringPackedWiden*);

/* ---- the best of many scores ------------------------------------------------- */

typedef struct SparringPackedBest {
  int64_t id;
  float score;
  uint32_t reserved;
} SparringPackedBest;

/*
 * Keeps, of each of q queries, the k best of the scores that are given block by block:
 * a larger score is better, of equal ones the smaller id, and NaN is never kept. A
 * caller multiplies queries with the rows of a scan; no serving snapshot is needed.
 *
 * Zero `counts` before the first block, and pass the same arrays with each. `is_last`
 * sorts, the best first, and leaves at most k; a last call may have no rows.
 */
typedef struct SparringPackedSelect {
  SparringCall call;
  int64_t num_queries;             /* q                                                 */
  int64_t num_rows;                /* n: of this block                                  */
  const int64_t* ids;              /* (n), each given in one block only                 */
  const float* scores;             /* (q, n)                                            */
  const int64_t* excluded;         /* ids that a query does not want, ascending; or NULL */
  const int64_t* excluded_offsets; /* (q + 1): of the queries in `excluded`             */
  int64_t k;                       /* at least 1                                        */
  int64_t capacity;                /* above k; 2 k costs little time                    */
  SparringPackedBest* best;        /* in, out (q, capacity)                             */
  int64_t* counts;                 /* in, out (q): how many of `best` are filled        */
  int32_t is_last;
} SparringPackedSelect;

SPARRING_PACKED_API SparringStatus sparring_packed_select(SparringPackedSelect*);

/* The fastest of "portable", "avx2" and "avx512" that this CPU has is used, or what
 * the environment variable SPARRING_SIMD names. All give the same bits. */
SPARRING_PACKED_API const char* sparring_packed_simd_level(void);

/* Chooses another one from now on, on all threads; returns 0 if it is not to be had. */
SPARRING_PACKED_API int32_t sparring_packed_set_simd_level(const char* name);

/* The id of a string of `size` bytes, as `sparring.hash_strings` makes it in training: XXH3 of 64
 * bits, without a seed. Text is UTF-8. `bytes` may be NULL where `size` is 0. */
SPARRING_PACKED_API int64_t sparring_hash_string(const char* bytes, size_t size);

/* ---- writing ----------------------------------------------------------------- */

/*
 * Makes the bytes of one data file. Call it with `file` NULL for `file_bytes`, then
 * with room for so many. `sparring_packed.write` in Python writes whole snapshots.
 */
typedef struct SparringPackedPack {
  SparringCall call;
  const char* table;       /* its name                                             */
  int64_t count;           /* n                                                    */
  const int64_t* ids;      /* (n) int64, unique                                    */
  const void* embeddings;  /* (n, dim) of `source_dtype`; NULL: erased keys alone  */
  uint64_t source_stride;  /* bytes from embedding to embedding                    */
  int32_t source_dtype;    /* FLOAT32, FLOAT16 or BFLOAT16                         */
  int32_t dtype;           /* how to store them                                    */
  int32_t dim;
  int32_t partition_begin; /* of all ids, [begin, end)                             */
  int32_t partition_end;
  uint64_t file_bytes;     /* in: room at `file`; out: length of the file          */
  void* file;
  double square_error;     /* out: sum of squares of what rounding changed         */
  double square_sum;       /* out: sum of squares of the embeddings                */
} SparringPackedPack;

SPARRING_PACKED_API SparringStatus sparring_packed_pack(SparringPackedPack*);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_PACKED_H_ */
