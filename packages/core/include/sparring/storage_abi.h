/*
 * The storage ABI of sparring, version 1.2: the whole native contract between
 * the engine and a storage backend, in one C file.
 *
 * PURPOSE
 *   A backend that is shipped as a package of its own, built by another
 *   compiler on another day, hands the engine one `SparringStorage`: a version,
 *   a release callback, and function pointers. The engine (core's kernels, the
 *   TensorFlow op, a C++ server) calls these without the Python interpreter.
 *   In Python the struct travels in a PyCapsule named SPARRING_STORAGE_CAPSULE,
 *   made by `sparring.contracts.get_capsule(storage)`; the capsule owns the struct.
 *
 * VERSIONS
 *   `version` is the first member and `release` the second, in every revision
 *   there will ever be, so that any reader can refuse and release any struct.
 *   - Another major version: the reader refuses the struct, naming both.
 *   - A larger minor version: members were appended; a reader ignores what it
 *     does not know. A smaller one: the reader looks at `struct_bytes` and
 *     treats members beyond it as NULL.
 *   Members are only ever appended, to this struct and to the argument structs.
 *
 * THREADS
 *   - `find`, `visit`, `scan`, `stat` may run at the same time as each other.
 *   - At most one of `upsert`, `update`, `erase`, `touch`, `evict`, `clear`,
 *     `set_option` runs at a time, and the engine sees to that; where `stat` reports
 *     SPARRING_CONCURRENT_READS the backend must allow readers concurrent with that
 *     one writer, otherwise the engine keeps readers away too.
 *   - No callback may keep a pointer that it was passed after it returns; the
 *     exception are row handles, see SparringVisit.
 *   - A callback may be called on any thread, and may spread its work over
 *     `call->executor`. It must never call Python unless it takes the GIL.
 *
 * ERRORS
 *   Every callback returns a status. On anything but SPARRING_OK it fills
 *   `call->error`, whose message belongs to the code that set `error.release`; the
 *   caller calls that once, when it has read the message. No C++ exception and
 *   no longjmp crosses this border. After an error the table is unchanged,
 *   except where a callback says otherwise.
 *
 * DEVICES
 *   Where `call.device` is not the CPU, all arrays of the call are there, and its
 *   work is put on `call.stream`: it has not happened when the callback returns,
 *   and the arrays must live, unchanged, until the stream has passed. Numbers that
 *   a struct hands back (`erased`, `count`, ...) are there on return. Arrays passed
 *   to `show`, `admit`, `change` and `receive` are on the device too; they are
 *   called on the calling thread and put their own work on the stream, which may
 *   use it if it was put there before they return. `change` gets known and new
 *   rows in one call, or in two; `inserted` is set before the first.
 *
 * ROWS
 *   A row is `row_bytes` opaque bytes: the embedding, then the optimizer state.
 *   Everything is little-endian. `columns` is the half-open byte range of each
 *   row that a call is about.
 *
 * KEYS
 *   Every int64 is a legal key: -1 and both extremes included. Keys are unique
 *   within one call, but for `visit`; the caller answers for that.
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
  SPARRING_INVALID_ARGUMENT = 1, /* the caller's mistake; retrying is useless */
  SPARRING_UNSUPPORTED = 2,      /* not in this backend's capabilities        */
  SPARRING_CLOSED = 3,           /* the storage was closed                    */
  SPARRING_CAPACITY = 4,         /* full, and the policy may not evict        */
  SPARRING_OUT_OF_MEMORY = 5,
  SPARRING_IO = 6,               /* disk or network failed                    */
  SPARRING_DEADLINE = 7,         /* the backend gave up waiting               */
  SPARRING_CORRUPT = 8,          /* stored data fails its own check           */
  SPARRING_INTERNAL = 9,         /* a bug in the backend                      */
  SPARRING_DEVICE_FAILED = 10,   /* a GPU refused this call, and goes on      */
  SPARRING_DEVICE_LOST = 11,     /* a GPU has failed: every later call, too   */
  SPARRING_DEVICE_MEMORY = 12    /* a GPU has no more memory for this call    */
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

/*
 * Since 1.1. Shows rows where they lie, without any side effect: a caller that
 * sums rows need not have them copied first. Keys may repeat.
 *
 * `show(context, begin, count, rows)` is called on the calling thread, for
 * ranges that follow one another from 0 to n. rows[i] points at byte
 * `columns.begin` of the row of keys[begin + i], or is NULL where the key has
 * none; it is valid until `show` returns, and bytes up to `columns.end` may be
 * read. A backend does well to have these bytes on their way into the near
 * cache. `show` must not call the storage; a nonzero return ends the visit with
 * SPARRING_INTERNAL. `call.executor` is not used: the caller divides the work.
 *
 * Row handles, since 1.2, of storages that report SPARRING_ROW_HANDLES: with
 * `columns.begin` 0, rows[i] is the handle of the row, and may be kept. A later
 * visit or update that passes it back with its key, and the `generation` that this
 * visit set, need not look for the key again. The storage draws a new generation,
 * which no storage of the process has had, whenever a row leaves or moves; handles of
 * another generation are ignored, so passing old ones is slow and never wrong. A
 * handle may be dereferenced by the storage alone. Columns may be empty (begin ==
 * end) where handles are all that is wanted.
 */
typedef struct SparringVisit {
  SparringCall call;
  int64_t count;       /* n         */
  const int64_t* keys; /* (n) int64 */
  SparringColumns columns;
  int32_t (*show)(void* context, int64_t begin, int64_t count, const void* const* rows);
  void* context;
  /* 1.2 */
  const void* const* handles; /* (n) of the keys, or NULL: none are known. A NULL
                                 among them: the key had no row                    */
  uint64_t generation;        /* in: of `handles`; out: of the rows shown, if the
                                 storage keeps handles                             */
} SparringVisit;

/*
 * Since 1.1. Changes rows where they lie, inserting those that are missing: one
 * look at each key where find and upsert take two.
 *
 * 1. `admit(context, count, positions, is_admitted)` is called once with the
 *    positions, ascending, of the keys that have no row, if there are any, and
 *    answers for each whether it may have one. NULL admits all.
 * 2. `change(context, count, positions, rows, is_new)` is then called, from
 *    several threads at once, until it has had the position of every key that
 *    has or may have a row, each exactly once. rows[i] points at the whole row,
 *    which `change` may read and write until it returns; the bytes of a new row
 *    (is_new[i] = 1) are undefined before, and `change` must write all of them.
 *    `change` must not fail, nor call the storage.
 *
 * Applied whole or not at all, as upsert: whatever can fail (no room, no memory,
 * an `admit` that returns nonzero: SPARRING_INTERNAL) fails before the first
 * `change`. Scores are set as upsert sets them. Where the policy evicts, new
 * rows may leave at once.
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
  int64_t inserted; /* out: new rows, those that left at once included */
  /* 1.2 */
  const void* const* handles; /* (n) as of SparringVisit, or NULL. A NULL among them:
                                 the key is looked for, as it may have a row by now */
  uint64_t generation;        /* of `handles`                                       */
} SparringUpdate;

/* Capability bits. */
enum {
  SPARRING_CONCURRENT_READS = 1u << 0, /* readers concurrent with one writer  */
  SPARRING_PERSISTENT = 1u << 1,       /* rows outlive the process            */
  SPARRING_BOUNDED = 1u << 2,          /* `capacity` limits the rows          */
  SPARRING_EVICTS = 1u << 3,           /* a full storage evicts               */
  SPARRING_SCORES_GIVEN = 1u << 4,     /* the caller's scores are honoured    */
  SPARRING_ROW_HANDLES = 1u << 5       /* since 1.2; see SparringVisit        */
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
  /* 1.1, optional: the engine makes do with find and upsert where they are NULL */
  SparringStatus (*visit)(void* self, SparringVisit*);
  SparringStatus (*update)(void* self, SparringUpdate*);
} SparringStorage;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_STORAGE_ABI_H_ */
