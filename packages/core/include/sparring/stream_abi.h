/*
 * The streams of a device, for the engine, which knows no CUDA.
 *
 * PURPOSE
 *   A module that drives a device hands over one `SparringStreams`: streams, events,
 *   calls on the host, pinned memory and copies as plain C functions. The execution
 *   pool waits for streams through it, and the exchange stages messages through it.
 *
 * FINDING IT
 *   A PyCapsule named SPARRING_STREAMS_CAPSULE. The struct lives as long as the
 *   process: a wait may outlive the code that began it.
 *
 * VERSIONS, ERRORS
 *   As in storage_abi.h: members are only ever appended; a status other than
 *   SPARRING_OK comes with a message that `error.release` frees. A device that has
 *   failed answers everything with SPARRING_DEVICE_LOST, and stays so; one that refuses
 *   a call alone answers with SPARRING_DEVICE_FAILED.
 *
 * THREADS
 *   All functions from any thread. Only `free_pinned` and `allocate_pinned` may wait
 *   for the device.
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

/* The arguments of every function; each says which of them it reads and fills. */
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
  SparringVersion version;  /* first, for ever                                   */
  uint64_t struct_bytes;
  const char* device;       /* "cuda:0"                                          */
  void* self;
  SparringStreamFunction make_stream;  /* fills stream                           */
  SparringStreamFunction free_stream;  /* of make_stream; work on it still ends  */
  SparringStreamFunction make_event;   /* fills event                            */
  SparringStreamFunction free_event;
  /* The event is reached when all that is on the stream now is done. */
  SparringStreamFunction record_event;
  /* Later work on `stream` runs after the event; the calling thread does not wait. */
  SparringStreamFunction order_after;
  /* Fills is_done; an error where what the event waits for has failed. */
  SparringStreamFunction query_event;
  /* function(argument) on a thread of the device's choice, or on this one before
   * it returns, when all that is on the stream now is done. It must not call this
   * table, nor wait. It may never be called where the device fails. */
  SparringStreamFunction call_on_host;
  /* num_bytes of host memory that the device copies without a detour: to. */
  SparringStreamFunction allocate_pinned;
  SparringStreamFunction free_pinned;  /* to, num_bytes */
  /* num_bytes between device and pinned memory, either way, on the stream. */
  SparringStreamFunction copy;
} SparringStreams;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_STREAM_ABI_H_ */
