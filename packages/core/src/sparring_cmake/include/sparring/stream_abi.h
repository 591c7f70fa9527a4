/*
 * The streams of a device, for the engine, which does not depend on CUDA.
 *
 * PURPOSE
 *   A module that drives a device provides one `SparringStreams`: streams, events, calls
 *   on the host, pinned memory and copies as plain C functions. The execution pool uses
 *   it to wait for streams, and the exchange to stage messages.
 *
 * FINDING IT
 *   A PyCapsule named SPARRING_STREAMS_CAPSULE. The struct lives as long as the process,
 *   because a wait may outlive the code that began it.
 *
 * VERSIONS, ERRORS
 *   As in storage_abi.h: members are only appended, and a status other than SPARRING_OK
 *   comes with a message that `error.release` frees. SPARRING_DEVICE_FAILED means that
 *   only this call failed. After the device has failed, all calls return
 *   SPARRING_DEVICE_LOST.
 *
 * THREADS
 *   All functions may be called on any thread. Only `free_pinned` and `allocate_pinned`
 *   may wait for the device.
 */
#ifndef SPARRING_STREAM_ABI_H_
#define SPARRING_STREAM_ABI_H_

#include "sparring/storage_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPARRING_STREAMS_ABI_MAJOR 1u
#define SPARRING_STREAMS_ABI_MINOR 0u
#define SPARRING_STREAMS_CAPSULE "sparring.streams"

/* Arguments of all functions. The comment of each function lists those that it uses. */
typedef struct SparringStreamCall {
  uint64_t struct_bytes;
  void* stream;              /* cudaStream_t; NULL: the default stream           */
  void* event;               /* cudaEvent_t                                      */
  void (*function)(void*);
  void* argument;
  int32_t is_done;           /* out                                              */
  void* to;                  /* device or host memory; out of allocate_pinned    */
  const void* from;
  uint64_t num_bytes;
  SparringError error;       /* out                                              */
} SparringStreamCall;

typedef SparringStatus (*SparringStreamFunction)(void* self, SparringStreamCall*);

typedef struct SparringStreams {
  SparringVersion version;  /* always first                                      */
  uint64_t struct_bytes;
  const char* device;       /* "cuda:0"                                          */
  void* self;
  SparringStreamFunction make_stream;  /* fills stream                           */
  SparringStreamFunction free_stream;  /* of make_stream; enqueued work still runs */
  SparringStreamFunction make_event;   /* fills event                            */
  SparringStreamFunction free_event;
  /* The event is reached when all work that is on the stream now has completed. */
  SparringStreamFunction record_event;
  /* Later work on `stream` runs after the event; the calling thread does not wait. */
  SparringStreamFunction order_after;
  /* Fills is_done; an error if the work before the event has failed. */
  SparringStreamFunction query_event;
  /* Calls function(argument) when all work that is on the stream now has completed, on a
   * thread of the driver, or on the calling thread before it returns. `function` must not
   * call this table, and must not wait. If the device fails, it may never be called. */
  SparringStreamFunction call_on_host;
  /* Allocates num_bytes of host memory that the device can copy directly; fills to. */
  SparringStreamFunction allocate_pinned;
  SparringStreamFunction free_pinned;  /* to, num_bytes */
  /* Copies num_bytes between device and pinned memory, in either direction, on the stream. */
  SparringStreamFunction copy;
} SparringStreams;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_STREAM_ABI_H_ */
