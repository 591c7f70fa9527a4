/*
 * The storage ABI of sparring, version 1.0: the whole native contract between
 * the engine and a storage backend, in one C file.
 *
 * PURPOSE
 *   A backend that is shipped as a package of its own, built by another
 *   compiler on another day, hands the engine one `SparringStorage`: a version,
 *   a release callback, and function pointers. The engine (core's kernels, the
 *   TensorFlow op, a C++ server) calls these without the Python interpreter.
 *   In Python the struct travels in a PyCapsule named SPARRING_STORAGE_CAPSULE,
 *   made by `storage.__sparring_storage__()`; the capsule owns the struct.
 *
 * VERSIONS
 *   `version` is the first member and `release` the second, in every revision
 *   there will ever be, so that any reader can refuse and release any struct.
 *   - Another major version: the reader refuses the struct, naming both.
 *   - A larger minor version: members were appended; a reader ignores what it
 *     does not know. A smaller one: the reader looks at `struct_bytes` and
 *     treats what lies beyond it as NULL.
 *   Members are only ever appended, to this struct and to the argument structs.
 *
 * THREADS
 *   - `find`, `scan`, `stat` may run at the same time as each other.
 *   - At most one of `upsert`, `erase`, `touch`, `evict`, `clear`, `set_option`
 *     runs at a time, and the engine sees to that; where `stat` reports
 *     SPARRING_CONCURRENT_READS the backend must bear readers beside that one
 *     writer, otherwise the engine keeps readers away too.
 *   - No callback may keep a pointer that it was passed after it returns.
 *   - A callback may be called on any thread, and may spread its work over
 *     `call->executor`. It must never call Python unless it takes the GIL.
 *
 * ERRORS
 *   Every callback returns a status. On anything but SPARRING_OK it fills
 *   `call->error`, whose message belongs to whoever set `error.release`; the
 *   caller calls that once, when it has read the message. No C++ exception and
 *   no longjmp crosses this border. After an error the table is unchanged,
 *   except where a callback says otherwise.
 *
 * ROWS
 *   A row is `row_bytes` opaque bytes: the embedding, then the optimizer state.
 *   Everything is little-endian. `columns` is the half-open byte range of each
 *   row that a call is about.
 *
 * KEYS
 *   Every int64 is a legal key: -1 and both extremes included. Keys are unique
 *   within one call; the caller answers for that.
 */
#ifndef SPARRING_STORAGE_ABI_H_
#define SPARRING_STORAGE_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPARRING_STORAGE_ABI_MAJOR 1u
#define SPARRING_STORAGE_ABI_MINOR 0u
#define SPARRING_STORAGE_CAPSULE "sparring.storage"

/* ---- status ----------------------------------------------------------- */

typedef int32_t SparringStatus;
enum {
  SPARRING_OK = 0,
  SPARRING_INVALID_ARGUMENT = 1, /* the caller's mistake; retrying is useless */
  SPARRING_UNSUPPORTED = 2,      /* not in this backend's capabilities        */
  SPARRING_CLOSED = 3,           /* the storage was closed                    */
  SPARRING_CAPACITY = 4,         /* full, and the policy may not evict        */
  SPARRING_OUT_OF_MEMORY = 5,
  SPARRING_IO = 6,               /* disk or network failed                    */
  SPARRING_DEADLINE = 7,         /* the backend gave up waiting               */
  SPARRING_CORRUPT = 8,          /* stored data fails its own check           */
  SPARRING_INTERNAL = 9          /* a bug in the backend                      */
};

typedef struct SparringError {
  const char* message;                   /* UTF-8, NUL-terminated, or NULL    */
  void (*release)(struct SparringError*); /* frees the message; NULL if static */
  void* owner;                           /* for `release`                     */
} SparringError;

/* ---- what every call carries ------------------------------------------ */

/* Where the pointers of a call live. Codes are DLPack's: 1 = CPU, 2 = CUDA. */
typedef struct SparringDevice {
  int32_t type;
  int32_t id;
} SparringDevice;

/*
 * The host lends its threads. `parallel_for` calls body(context, begin, end)
 * over disjoint ranges that cover [0, count), on up to `concurrency` threads,
 * the caller's among them, each range at least `grain` long but the last; it
 * returns when all are done. A backend needs no thread pool of its own.
 * `body` must not fail by exception.
 */
typedef struct SparringExecutor {
  uint64_t struct_bytes;
  void* self;
  int32_t concurrency;
  void (*parallel_for)(void* self, int64_t count, int64_t grain,
                       void (*body)(void* context, int64_t begin, int64_t end),
                       void* context);
} SparringExecutor;

typedef struct SparringCall {
  uint64_t struct_bytes;            /* of the argument struct this begins      */
  SparringDevice device;            /* where keys, rows, scores, found live    */
  void* stream;                     /* cudaStream_t, or NULL on the CPU        */
  const SparringExecutor* executor; /* NULL: run on the calling thread alone   */
  SparringError error;              /* out                                     */
} SparringCall;

/* Half-open byte range of a row. */
typedef struct SparringColumns {
  uint64_t begin;
  uint64_t end;
} SparringColumns;

/* ---- arguments, one struct a callback --------------------------------- */

/* Reads rows without any side effect, scores included. */
typedef struct SparringFind {
  SparringCall call;
  int64_t count;           /* n                                               */
  const int64_t* keys;     /* (n) int64                                       */
  SparringColumns columns;
  void* rows;              /* out (n, row_stride) bytes; a missing key's row
                              is filled with zeros                            */
  uint64_t row_stride;     /* bytes from row to row, >= end - begin           */
  uint8_t* found;          /* out (n): 1 where the key has a row, else 0      */
} SparringFind;

/*
 * Receives rows that had to leave, as they leave: (n) keys, (n, row_bytes)
 * rows, (n) scores, valid during the call only. It may be called several
 * times. A nonzero return makes the upsert report SPARRING_INTERNAL, but the
 * eviction stands.
 */
typedef struct SparringEvictionSink {
  int32_t (*receive)(void* context, int64_t count, const int64_t* keys,
                     const void* rows, const uint64_t* scores);
  void* context; /* `receive` NULL: evicted rows are dropped */
} SparringEvictionSink;

/*
 * Replaces or inserts whole rows. Applied whole or not at all, unless the
 * status is SPARRING_IO, SPARRING_DEADLINE or SPARRING_CORRUPT: then each key
 * has either its old or its new row.
 */
typedef struct SparringUpsert {
  SparringCall call;
  int64_t count;           /* n                                               */
  const int64_t* keys;     /* (n) int64                                       */
  const void* rows;        /* (n, row_stride) bytes                           */
  uint64_t row_stride;     /* bytes from row to row, >= row_bytes             */
  const uint64_t* scores;  /* (n), or NULL: the policy decides                */
  SparringEvictionSink evicted;
} SparringUpsert;

/* Removes keys; unknown keys are no error. Nothing reaches a sink. */
typedef struct SparringErase {
  SparringCall call;
  int64_t count;       /* n                     */
  const int64_t* keys; /* (n) int64             */
  int64_t erased;      /* out: how many existed */
} SparringErase;

/* Tells the policy that keys were read. Unknown keys are no error. */
typedef struct SparringTouch {
  SparringCall call;
  int64_t count;           /* n                                               */
  const int64_t* keys;     /* (n) int64                                       */
  const uint64_t* scores;  /* (n), or NULL: the policy decides                */
} SparringTouch;

/* Makes room: removes up to `wanted` rows, the lowest scores first. */
typedef struct SparringEvict {
  SparringCall call;
  int64_t wanted;
  int64_t evicted; /* out: how many left */
  SparringEvictionSink sink;
} SparringEvict;

/*
 * One chunk of a scan. The caller starts with a zeroed cursor and passes the
 * struct back until `is_done`. Every key that is present from the first chunk
 * to the last is given at least once, and exactly once if nothing writes
 * meanwhile; nothing more is promised. A chunk may be short or empty. On a
 * backend that cannot resume, a cursor that it did not make is
 * SPARRING_INVALID_ARGUMENT.
 */
typedef struct SparringScan {
  SparringCall call;
  uint64_t cursor[2];      /* in, out: the backend's own                      */
  int64_t capacity;        /* room in rows, at least 1                        */
  SparringColumns columns;
  int64_t count;           /* out: rows given                                 */
  int64_t* keys;           /* out (capacity) int64                            */
  void* rows;              /* out (capacity, end - begin) bytes, or NULL      */
  uint64_t* scores;        /* out (capacity), or NULL                         */
  int32_t is_done;         /* out                                             */
} SparringScan;

/* Capability bits. */
enum {
  SPARRING_CONCURRENT_READS = 1u << 0, /* readers beside one writer           */
  SPARRING_PERSISTENT = 1u << 1,       /* rows outlive the process            */
  SPARRING_BOUNDED = 1u << 2,          /* `capacity` limits the rows          */
  SPARRING_EVICTS = 1u << 3,           /* a full storage evicts               */
  SPARRING_SCORES_GIVEN = 1u << 4      /* the caller's scores are honoured    */
};

typedef struct SparringStat {
  SparringCall call;
  uint64_t capabilities;  /* out: bits above                                  */
  uint64_t row_bytes;     /* out                                              */
  int64_t size;           /* out: rows now                                    */
  int64_t capacity;       /* out: the most rows, or -1: no bound              */
  uint64_t memory_bytes;  /* out: all memory held for this storage            */
} SparringStat;

/* Sets an option while open, as `epoch` of an epoch policy; text both. */
typedef struct SparringSetOption {
  SparringCall call;
  const char* name;
  const char* value;
} SparringSetOption;

/* `flush` (returns when all is as durable as the backend makes it) and `clear`. */
typedef struct SparringPlain {
  SparringCall call;
} SparringPlain;

/* ---- the storage ------------------------------------------------------- */

typedef struct SparringVersion {
  uint32_t major;
  uint32_t minor;
} SparringVersion;

typedef struct SparringStorage {
  SparringVersion version;                   /* first, for ever               */
  void (*release)(struct SparringStorage*);  /* second, for ever; closes and
                                                frees; called exactly once,
                                                with no other call under way  */
  /* 1.0 */
  uint64_t struct_bytes;
  const char* distribution; /* who built it, as "sparring-hkv 0.1.0"; owned   */
  void* self;               /* the backend's own                              */
  SparringStatus (*find)(void* self, SparringFind*);
  SparringStatus (*upsert)(void* self, SparringUpsert*);
  SparringStatus (*erase)(void* self, SparringErase*);
  SparringStatus (*scan)(void* self, SparringScan*);
  SparringStatus (*stat)(void* self, SparringStat*);
  SparringStatus (*flush)(void* self, SparringPlain*);
  SparringStatus (*clear)(void* self, SparringPlain*);
  /* optional: NULL where the capability is absent */
  SparringStatus (*touch)(void* self, SparringTouch*);
  SparringStatus (*evict)(void* self, SparringEvict*);
  SparringStatus (*set_option)(void* self, SparringSetOption*);
} SparringStorage;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_STORAGE_ABI_H_ */
