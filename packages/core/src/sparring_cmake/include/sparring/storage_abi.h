/*
 * The storage ABI of sparring, version 1.2: the whole native contract between
 * the engine and a storage backend, in one C file.
 *
 * PURPOSE
 *   A backend is a separate package, possibly built with another compiler. It
 *   passes one `SparringStorage` to the engine: a version, a release callback,
 *   and function pointers. The engine (core's kernels, the TensorFlow op, a C++
 *   server) calls them without the Python interpreter. In Python, a PyCapsule
 *   named SPARRING_STORAGE_CAPSULE owns the struct;
 *   `sparring.contracts.get_capsule(storage)` returns it.
 *
 * VERSIONS
 *   In every revision, `version` is the first member and `release` the second,
 *   so that any reader can reject and release any struct.
 *   - Other major version: the reader rejects the struct with an error that
 *     contains both versions.
 *   - Larger minor version: members were appended, and the reader ignores the
 *     members that it does not know. Smaller minor version: the reader treats
 *     members beyond `struct_bytes` as NULL.
 *   Members are only appended, to this struct and to the argument structs.
 *
 * THREADS
 *   - `find`, `visit`, `scan` and `stat` may run concurrently with each other.
 *   - The engine calls at most one of `upsert`, `update`, `erase`, `touch`,
 *     `evict`, `clear` and `set_option` at a time. If `stat` reports
 *     SPARRING_CONCURRENT_READS, the backend must support readers concurrent
 *     with that writer. Otherwise the engine excludes readers during writes.
 *   - A callback must not use a pointer argument after it returns. Row handles
 *     are the exception; see SparringVisit.
 *   - A callback may be called on any thread, and may distribute its work with
 *     `call->executor`. It must acquire the GIL before it calls Python.
 *
 * ERRORS
 *   Every callback returns a status. With any status other than SPARRING_OK it
 *   sets `call->error`. The code that set `error.release` owns the message; the
 *   caller calls `release` once, after it has read the message. C++ exceptions
 *   and longjmp must not cross this interface. After an error the table is
 *   unchanged, unless the documentation of the callback specifies otherwise.
 *
 * DEVICES
 *   If `call.device` is not the CPU, all arrays of the call are on that device,
 *   and the callback enqueues its work on `call.stream`. The work may not have
 *   run when the callback returns, so the arrays must stay allocated and
 *   unchanged until the stream has executed it. Numbers that a struct returns
 *   (`erased`, `count`, ...) are set on return. Arrays passed to `show`, `admit`,
 *   `change` and `receive` are on the device too. These functions are called on
 *   the calling thread and enqueue their work on the stream; later work of the
 *   callback on the stream may use the results of work that they enqueued before
 *   they returned. `change` receives known and new rows in one call or in two
 *   calls; `inserted` is set before the first one.
 *
 * ROWS
 *   A row consists of `row_bytes` opaque bytes: the embedding, then the
 *   optimizer state. All data is little-endian. `columns` is the half-open byte
 *   range of each row that a call reads or writes.
 *
 * KEYS
 *   Every int64 is a valid key, including -1 and both extremes. The caller
 *   guarantees that keys are unique within one call, except for `visit`.
 */
#ifndef SPARRING_STORAGE_ABI_H_
#define SPARRING_STORAGE_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPARRING_STORAGE_ABI_MAJOR 1u
#define SPARRING_STORAGE_ABI_MINOR 2u
#define SPARRING_STORAGE_CAPSULE "sparring.storage"

/* ---- status ----------------------------------------------------------- */

typedef int32_t SparringStatus;
enum {
  SPARRING_OK = 0,
  SPARRING_INVALID_ARGUMENT = 1, /* an error of the caller; do not retry      */
  SPARRING_UNSUPPORTED = 2,      /* not in this backend's capabilities        */
  SPARRING_CLOSED = 3,           /* the storage was closed                    */
  SPARRING_CAPACITY = 4,         /* full, and the policy does not evict       */
  SPARRING_OUT_OF_MEMORY = 5,
  SPARRING_IO = 6,               /* disk or network failed                    */
  SPARRING_DEADLINE = 7,         /* the deadline passed                       */
  SPARRING_CORRUPT = 8,          /* stored data fails its checksum            */
  SPARRING_INTERNAL = 9,         /* a bug in the backend                      */
  SPARRING_DEVICE_FAILED = 10,   /* only this call failed on the GPU          */
  SPARRING_DEVICE_LOST = 11,     /* the GPU failed, as will all later calls   */
  SPARRING_DEVICE_MEMORY = 12    /* not enough GPU memory for this call       */
};

typedef struct SparringError {
  const char* message;                   /* UTF-8, NUL-terminated, or NULL    */
  void (*release)(struct SparringError*); /* frees the message; NULL if static */
  void* owner;                           /* for `release`                     */
} SparringError;

/* ---- arguments of every call ------------------------------------------- */

/* Device of the arrays of a call, with DLPack's codes: 1 = CPU, 2 = CUDA. */
typedef struct SparringDevice {
  int32_t type;
  int32_t id;
} SparringDevice;

/*
 * Threads of the caller, so that a backend needs no thread pool. `parallel_for`
 * calls body(context, begin, end) for disjoint ranges that cover [0, count), on
 * up to `concurrency` threads including the calling one. Each range except the
 * last has at least `grain` elements. It returns when all calls have returned.
 * `body` must not throw.
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
  uint64_t struct_bytes;            /* size of the whole argument struct       */
  SparringDevice device;            /* of keys, rows, scores and found         */
  void* stream;                     /* cudaStream_t, or NULL on the CPU        */
  const SparringExecutor* executor; /* NULL: run on the calling thread only    */
  SparringError error;              /* out                                     */
} SparringCall;

/* Half-open byte range of a row. */
typedef struct SparringColumns {
  uint64_t begin;
  uint64_t end;
} SparringColumns;

/* ---- arguments, one struct per callback -------------------------------- */

/* Reads rows without side effects; scores do not change. */
typedef struct SparringFind {
  SparringCall call;
  int64_t count;           /* n                                               */
  const int64_t* keys;     /* (n) int64                                       */
  SparringColumns columns;
  void* rows;              /* out (n, row_stride) bytes; a missing key's row
                              is filled with zeros                            */
  uint64_t row_stride;     /* bytes from row to row, >= end - begin           */
  uint8_t* found;          /* out (n): 1 if the key has a row, else 0         */
} SparringFind;

/*
 * Receives evicted rows when they are evicted: (n) keys, (n, row_bytes) rows and
 * (n) scores, which are valid only during the call. It may be called several
 * times. If it returns nonzero, the upsert returns SPARRING_INTERNAL, but the
 * rows are evicted nevertheless.
 */
typedef struct SparringEvictionSink {
  int32_t (*receive)(void* context, int64_t count, const int64_t* keys,
                     const void* rows, const uint64_t* scores);
  void* context; /* `receive` NULL: evicted rows are dropped */
} SparringEvictionSink;

/*
 * Replaces or inserts whole rows, all or none of them. With the status
 * SPARRING_IO, SPARRING_DEADLINE or SPARRING_CORRUPT, each key has either its
 * old or its new row.
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

/* Removes keys, and ignores unknown keys. No sink receives the rows. */
typedef struct SparringErase {
  SparringCall call;
  int64_t count;       /* n                     */
  const int64_t* keys; /* (n) int64             */
  int64_t erased;      /* out: how many existed */
} SparringErase;

/* Notifies the policy that keys were read. Ignores unknown keys. */
typedef struct SparringTouch {
  SparringCall call;
  int64_t count;           /* n                                               */
  const int64_t* keys;     /* (n) int64                                       */
  const uint64_t* scores;  /* (n), or NULL: the policy decides                */
} SparringTouch;

/* Evicts up to `wanted` rows, the lowest scores first. */
typedef struct SparringEvict {
  SparringCall call;
  int64_t wanted;
  int64_t evicted; /* out: number of evicted rows */
  SparringEvictionSink sink;
} SparringEvict;

/*
 * One chunk of a scan. The caller starts with a cursor of zeros and passes the
 * struct again until `is_done` is set. Every key that exists during the whole
 * scan is returned at least once, and exactly once if there are no concurrent
 * writes. There are no further guarantees. A chunk may be short or empty. A
 * backend that cannot resume a scan returns SPARRING_INVALID_ARGUMENT for a
 * cursor that it did not create.
 */
typedef struct SparringScan {
  SparringCall call;
  uint64_t cursor[2];      /* in, out: opaque, of the backend                 */
  int64_t capacity;        /* rows that fit into the arrays, at least 1       */
  SparringColumns columns;
  int64_t count;           /* out: number of rows in the chunk                */
  int64_t* keys;           /* out (capacity) int64                            */
  void* rows;              /* out (capacity, end - begin) bytes, or NULL      */
  uint64_t* scores;        /* out (capacity), or NULL                         */
  int32_t is_done;         /* out                                             */
} SparringScan;

/*
 * Since 1.1. Passes pointers to rows in the storage, without copies and without
 * side effects, for example to a caller that sums rows. Keys may repeat.
 *
 * `show(context, begin, count, rows)` is called on the calling thread for
 * consecutive ranges that cover [0, n). rows[i] points to byte `columns.begin`
 * of the row of keys[begin + i], or is NULL if the key has no row. It is valid
 * until `show` returns, and bytes up to `columns.end` may be read. A backend
 * should prefetch these bytes into the nearest CPU cache. `show` must not call
 * the storage. If it returns nonzero, the visit ends with SPARRING_INTERNAL.
 * `call.executor` is not used, because the caller distributes the work.
 *
 * Row handles, since 1.2, of storages that report SPARRING_ROW_HANDLES: if
 * `columns.begin` is 0, rows[i] is the handle of the row, and the caller may
 * keep it. A later visit or update that receives the handle with its key, and
 * the `generation` that this visit set, need not search for the key again. When a
 * row is removed or moved, the storage sets a new generation that no storage
 * of the process has used. It ignores handles of another generation, so old
 * handles are slow but never wrong. Only the storage may dereference a handle
 * after `show` has returned. Columns may be empty (begin == end) if only handles
 * are needed.
 */
typedef struct SparringVisit {
  SparringCall call;
  int64_t count;       /* n         */
  const int64_t* keys; /* (n) int64 */
  SparringColumns columns;
  int32_t (*show)(void* context, int64_t begin, int64_t count, const void* const* rows);
  void* context;
  /* 1.2 */
  const void* const* handles; /* (n) handles of the keys; NULL if none are known. A
                                 NULL element: the key had no row                  */
  uint64_t generation;        /* in: of `handles`; out: of the visited rows, if the
                                 storage supports handles                          */
} SparringVisit;

/*
 * Since 1.1. Changes rows in the storage, and inserts missing rows. It searches
 * once for each key, whereas find and upsert search twice.
 *
 * 1. `admit(context, count, positions, is_admitted)` is called once with the
 *    ascending positions of the keys without a row, if there are any. It sets
 *    for each key whether a row may be inserted. If `admit` is NULL, all keys
 *    are admitted.
 * 2. `change(context, count, positions, rows, is_new)` is then called,
 *    concurrently on several threads, with the position of every key that has a
 *    row or was admitted, each exactly once. rows[i] points to the whole row,
 *    which `change` may read and write until it returns. The bytes of a new row
 *    (is_new[i] = 1) are undefined before, and `change` must write all of them.
 *    `change` must not fail, and must not call the storage.
 *
 * All rows are changed or none, as with upsert: everything that can fail
 * (capacity, memory, an `admit` that returns nonzero, which becomes
 * SPARRING_INTERNAL) fails before the first call of `change`. Scores are set as
 * in upsert. If the policy evicts, new rows may be evicted immediately.
 */
typedef struct SparringUpdate {
  SparringCall call;
  int64_t count;          /* n                                                */
  const int64_t* keys;    /* (n) int64                                        */
  const uint64_t* scores; /* (n), or NULL: the policy decides                 */
  int32_t (*admit)(void* context, int64_t count, const int64_t* positions, uint8_t* is_admitted);
  void (*change)(void* context, int64_t count, const int64_t* positions, void* const* rows,
                 const uint8_t* is_new);
  void* context;
  SparringEvictionSink evicted;
  int64_t inserted; /* out: new rows, including immediately evicted ones */
  /* 1.2 */
  const void* const* handles; /* (n) as in SparringVisit, or NULL. For a NULL element,
                                 the key is searched, because it may have a row now */
  uint64_t generation;        /* of `handles`                                       */
} SparringUpdate;

/* Capability bits. */
enum {
  SPARRING_CONCURRENT_READS = 1u << 0, /* readers concurrent with one writer  */
  SPARRING_PERSISTENT = 1u << 1,       /* rows outlive the process            */
  SPARRING_BOUNDED = 1u << 2,          /* `capacity` limits the rows          */
  SPARRING_EVICTS = 1u << 3,           /* a full storage evicts               */
  SPARRING_SCORES_GIVEN = 1u << 4,     /* the caller's scores are used        */
  SPARRING_ROW_HANDLES = 1u << 5       /* since 1.2; see SparringVisit        */
};

typedef struct SparringStat {
  SparringCall call;
  uint64_t capabilities;  /* out: bits above                                  */
  uint64_t row_bytes;     /* out                                              */
  int64_t size;           /* out: current number of rows                      */
  int64_t capacity;       /* out: maximum number of rows; -1: no limit        */
  uint64_t memory_bytes;  /* out: all memory allocated for this storage       */
} SparringStat;

/* Sets an option of an open storage, such as `epoch` of an epoch policy. Name
 * and value are text. */
typedef struct SparringSetOption {
  SparringCall call;
  const char* name;
  const char* value;
} SparringSetOption;

/* `flush` (makes all rows as durable as the backend supports) and `clear`. */
typedef struct SparringPlain {
  SparringCall call;
} SparringPlain;

/* ---- the storage ------------------------------------------------------- */

typedef struct SparringVersion {
  uint32_t major;
  uint32_t minor;
} SparringVersion;

typedef struct SparringStorage {
  SparringVersion version;                   /* always first                  */
  void (*release)(struct SparringStorage*);  /* always second; closes and
                                                frees; called exactly once,
                                                when no other call is running */
  /* 1.0 */
  uint64_t struct_bytes;
  const char* distribution; /* such as "sparring-hkv 0.1.0"; owned by the struct */
  void* self;               /* opaque, of the backend                         */
  SparringStatus (*find)(void* self, SparringFind*);
  SparringStatus (*upsert)(void* self, SparringUpsert*);
  SparringStatus (*erase)(void* self, SparringErase*);
  SparringStatus (*scan)(void* self, SparringScan*);
  SparringStatus (*stat)(void* self, SparringStat*);
  SparringStatus (*flush)(void* self, SparringPlain*);
  SparringStatus (*clear)(void* self, SparringPlain*);
  /* optional: NULL if the backend does not support it */
  SparringStatus (*touch)(void* self, SparringTouch*);
  SparringStatus (*evict)(void* self, SparringEvict*);
  SparringStatus (*set_option)(void* self, SparringSetOption*);
  /* 1.1, optional: the engine uses find and upsert if they are NULL */
  SparringStatus (*visit)(void* self, SparringVisit*);
  SparringStatus (*update)(void* self, SparringUpdate*);
} SparringStorage;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_STORAGE_ABI_H_ */
