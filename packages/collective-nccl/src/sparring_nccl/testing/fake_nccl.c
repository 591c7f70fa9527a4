/*
 * The functions of NCCL and of the CUDA driver that the nccl collective calls, for ranks that
 * are threads of one process. Device memory is host memory.
 *
 * It follows those rules of the real libraries that programs violate most easily:
 * - A stream executes its items one after the other. The sends and receives of a group are one
 *   item, which ends when all of them have ended; later items wait for it.
 * - A send is matched with a receive of the same communicator. Between two ranks, messages are
 *   matched in the order of their calls, because there are no tags. If the sizes of a send and
 *   its receive differ, both communicators report an error.
 * - Streams progress only when a program queries an event.
 * - Aborting a communicator ends the calls that are blocked in it. Other ranks are not notified.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum {
  CUDA_INVALID_VALUE = 1,
  CUDA_INVALID_DEVICE = 101,
  CUDA_NO_CONTEXT = 201,
  CUDA_CAPTURE_UNSUPPORTED = 900,
  CUDA_NOT_READY = 600
};

typedef struct { char bytes[128]; } UniqueId;

typedef struct Comm {
  UniqueId id;
  int rank, size, is_aborted, async_error;
  struct Comm* next;
  char log[4096];
} Comm;

typedef struct Op {
  int is_send, peer, is_matched, is_posted;
  char* memory;
  size_t num_bytes;
  Comm* comm;
  struct Op* next_in_group;
  struct Op* next_posted;
} Op;

typedef struct { int is_done, is_recorded; } Event;

typedef struct Item {
  enum { RECORD, WAIT, GROUP, HELD_WRITE } kind;
  Event* event;
  Op* ops;
  int is_released;
  char* memory;
  int value;
  size_t num_bytes;
  struct Item* next;
} Item;

typedef struct Stream {
  void* context;
  Item *head, *tail;
  struct Stream* next;
} Stream;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Comm* comms;
static Stream* streams;
static Op *posted, *last_posted;
static int num_synchronizes, num_events;
static char refused[64];
static int refusal, blocks_group_end, is_capturing;
static __thread int group_depth;
static __thread Op *group_ops, *last_group_op;
static __thread Stream* group_stream;
static __thread void* contexts[8];
static __thread int context_depth;
static __thread int capture_mode;

static size_t size_of(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < 10 ? sizes[type] : 0;
}

static int is_same(const Comm* a, const Comm* b) {
  return memcmp(&a->id, &b->id, sizeof a->id) == 0;
}

static Op* partner_of(Op* op) {
  for (Op* other = posted; other != NULL; other = other->next_posted) {
    if (!other->is_matched && other->is_send != op->is_send && !other->comm->is_aborted &&
        other->comm->rank == op->peer && other->peer == op->comm->rank &&
        is_same(other->comm, op->comm)) {
      return other;
    }
  }
  return NULL;
}

static int group_has_passed(Item* item) {
  int all = 1;
  for (Op* op = item->ops; op != NULL; op = op->next_in_group) {
    if (!op->is_posted) {
      op->is_posted = 1;
      if (last_posted == NULL) posted = op; else last_posted->next_posted = op;
      last_posted = op;
    }
    Op* other = op->is_matched || op->comm->is_aborted ? NULL : partner_of(op);
    if (other != NULL) {
      if (op->num_bytes != other->num_bytes) {
        op->comm->async_error = other->comm->async_error = INVALID_USAGE;
      } else {
        Op* from = op->is_send ? op : other;
        Op* to = op->is_send ? other : op;
        memcpy(to->memory, from->memory, from->num_bytes);
        op->is_matched = other->is_matched = 1;
      }
    }
    all &= op->is_matched || op->comm->is_aborted;
  }
  return all;
}

static int has_passed(Item* item) {
  switch (item->kind) {
    case RECORD: return item->event->is_done = 1;
    case WAIT: return item->event->is_done;
    case GROUP: return group_has_passed(item);
    case HELD_WRITE:
      if (item->is_released) memset(item->memory, item->value, item->num_bytes);
      return item->is_released;
  }
  return 1;
}

/* REQUIRES: mutex is held. */
static void move_on(void) {
  int has_moved = 1;
  while (has_moved) {
    has_moved = 0;
    for (Stream* each = streams; each != NULL; each = each->next) {
      while (each->head != NULL && has_passed(each->head)) {
        /* Items are never freed, because ops and events may still be read; tests are short. */
        each->head = each->head->next;
        if (each->head == NULL) each->tail = NULL;
        has_moved = 1;
      }
    }
  }
}

static Item* put(Stream* stream, int kind) {
  Item* item = calloc(1, sizeof *item);
  item->kind = kind;
  if (stream->tail == NULL) stream->head = item; else stream->tail->next = item;
  stream->tail = item;
  return item;
}

static int refusal_of(const char* name) {
  return strcmp(name, refused) == 0 ? refusal : SUCCESS;
}

#define LOCKED pthread_mutex_lock(&mutex)
#define RETURN(value)              \
  do {                             \
    const int returned = (value);  \
    pthread_mutex_unlock(&mutex);  \
    return returned;               \
  } while (0)
#define REFUSE_IF_ASKED(name) if (refusal_of(name) != SUCCESS) RETURN(refusal_of(name))

/* ---- nccl.h ------------------------------------------------------------ */

const char* ncclGetErrorString(int code) {
  switch (code) {
    case SUCCESS: return "no error";
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
  }
  return "unknown result code";
}

const char* ncclGetLastError(Comm* comm) { (void)comm; return "the fake says why"; }

int ncclGetUniqueId(UniqueId* id) {
  static int count;
  LOCKED;
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "fake %d", ++count);
  RETURN(refusal_of("ncclGetUniqueId"));
}

int ncclCommInitRank(Comm** out, int size, UniqueId id, int rank) {
  LOCKED;
  REFUSE_IF_ASKED("ncclCommInitRank");
  Comm* comm = calloc(1, sizeof *comm);
  comm->id = id, comm->rank = rank, comm->size = size, comm->next = comms;
  comms = comm;
  for (;;) {
    int found = 0;
    for (Comm* each = comms; each != NULL; each = each->next) found += is_same(each, comm);
    if (found >= size) break;
    pthread_cond_wait(&changed, &mutex);
  }
  pthread_cond_broadcast(&changed);
  *out = comm;
  RETURN(SUCCESS);
}

int ncclGroupStart(void) {
  LOCKED;
  REFUSE_IF_ASKED("ncclGroupStart");
  ++group_depth;
  RETURN(SUCCESS);
}

int ncclGroupEnd(void) {
  LOCKED;
  if (group_depth == 0) RETURN(INVALID_USAGE);
  Op* ops = group_ops;
  --group_depth;
  if (group_depth != 0) RETURN(SUCCESS);
  group_ops = last_group_op = NULL;
  if (ops == NULL) RETURN(refusal_of("ncclGroupEnd"));
  while (blocks_group_end && !ops->comm->is_aborted) pthread_cond_wait(&changed, &mutex);
  if (ops->comm->is_aborted) RETURN(INVALID_USAGE);
  REFUSE_IF_ASKED("ncclGroupEnd");
  char* log = ops->comm->log;
  size_t used = strlen(log);
  for (Op* op = ops; op != NULL && used + 64 < sizeof ops->comm->log; op = op->next_in_group) {
    used += (size_t)snprintf(log + used, 64, "%s%zu %s %d", op == ops ? "" : ", ", op->num_bytes,
                             op->is_send ? "to" : "from", op->peer);
  }
  if (used + 2 <= sizeof ops->comm->log) strcat(log, "\n");
  put(group_stream, GROUP)->ops = ops;
  RETURN(SUCCESS);
}

static int post(int is_send, void* memory, size_t count, int type, int peer, Comm* comm,
                Stream* stream) {
  if (comm == NULL || comm->is_aborted || peer < 0 || peer >= comm->size || size_of(type) == 0 ||
      stream == NULL || (memory == NULL && count != 0)) {
    return INVALID_ARGUMENT;
  }
  if (group_ops != NULL && stream != group_stream) return INVALID_USAGE;
  Op* op = calloc(1, sizeof *op);
  op->is_send = is_send, op->memory = memory, op->num_bytes = count * size_of(type);
  op->peer = peer, op->comm = comm;
  group_stream = stream;
  if (last_group_op == NULL) group_ops = op; else last_group_op->next_in_group = op;
  last_group_op = op;
  return SUCCESS;
}

int ncclSend(void* memory, size_t count, int type, int peer, Comm* comm, Stream* stream) {
  LOCKED;
  REFUSE_IF_ASKED("ncclSend");
  if (group_depth == 0) RETURN(INVALID_USAGE); /* the collective always uses groups */
  RETURN(post(1, memory, count, type, peer, comm, stream));
}

int ncclRecv(void* memory, size_t count, int type, int peer, Comm* comm, Stream* stream) {
  LOCKED;
  REFUSE_IF_ASKED("ncclRecv");
  if (group_depth == 0) RETURN(INVALID_USAGE);
  RETURN(post(0, memory, count, type, peer, comm, stream));
}

int ncclCommGetAsyncError(Comm* comm, int* code) {
  LOCKED;
  move_on();
  *code = comm->async_error;
  RETURN(SUCCESS);
}

int ncclCommAbort(Comm* comm) {
  LOCKED;
  comm->is_aborted = 1;
  pthread_cond_broadcast(&changed);
  RETURN(SUCCESS);
}

/* ---- cuda.h ------------------------------------------------------------ */

int cuInit(unsigned flags) { (void)flags; return SUCCESS; }
static int num_devices = 8;
void fake_show_devices(int count) { num_devices = count; }
int cuDeviceGetCount(int* count) { *count = num_devices; return SUCCESS; }
int cuDeviceGet(int* device, int number) {
  *device = number;
  return number < num_devices ? SUCCESS : CUDA_INVALID_DEVICE;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = (void*)(intptr_t)(device + 5);
  return SUCCESS;
}
int cuCtxPushCurrent_v2(void* context) {
  if (context == NULL || context_depth == 8) return CUDA_INVALID_VALUE;
  contexts[context_depth++] = context;
  return SUCCESS;
}
int cuCtxPopCurrent_v2(void** context) {
  if (context_depth == 0) return CUDA_NO_CONTEXT;
  *context = contexts[--context_depth];
  return SUCCESS;
}
int cuGetErrorString(int code, const char** text) {
  *text = code == CUDA_NO_CONTEXT ? "invalid device context" : "some error of the driver";
  return SUCCESS;
}

int cuCtxSynchronize(void) {
  if (context_depth == 0) return CUDA_NO_CONTEXT;
  for (int number = 0;; ++number) {
    int is_empty = 1;
    LOCKED;
    num_synchronizes += number == 0;
    move_on();
    for (Stream* each = streams; each != NULL; each = each->next) {
      is_empty &= each->head == NULL || each->context != contexts[context_depth - 1];
    }
    pthread_mutex_unlock(&mutex);
    if (is_empty) return SUCCESS;
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
}

int cuStreamCreate(Stream** out, unsigned flags) {
  (void)flags;
  LOCKED;
  if (context_depth == 0) RETURN(CUDA_NO_CONTEXT);
  Stream* stream = calloc(1, sizeof *stream);
  stream->context = contexts[context_depth - 1];
  stream->next = streams;
  streams = *out = stream;
  RETURN(SUCCESS);
}

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
  (void)flags;
  LOCKED;
  /* An event that was never recorded is not waited for. */
  if (event->is_recorded) put(stream, WAIT)->event = event;
  RETURN(SUCCESS);
}

int cuEventCreate(Event** out, unsigned flags) {
  (void)flags;
  LOCKED;
  if (context_depth == 0) RETURN(CUDA_NO_CONTEXT);
  *out = calloc(1, sizeof **out);
  ++num_events;
  RETURN(SUCCESS);
}

int cuEventRecord(Event* event, Stream* stream) {
  LOCKED;
  REFUSE_IF_ASKED("cuEventRecord");
  event->is_recorded = 1, event->is_done = 0;
  put(stream, RECORD)->event = event;
  RETURN(SUCCESS);
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int before = capture_mode;
  capture_mode = *mode, *mode = before;
  return SUCCESS;
}

int cuEventQuery(Event* event) {
  LOCKED;
  REFUSE_IF_ASKED("cuEventQuery");
  /* Unsafe while another thread captures a graph. */
  if (is_capturing && capture_mode == 0) RETURN(CUDA_CAPTURE_UNSUPPORTED);
  move_on();
  RETURN(event->is_done ? SUCCESS : CUDA_NOT_READY);
}

int cuEventDestroy_v2(Event* event) {
  (void)event; /* streams may still refer to it */
  LOCKED;
  --num_events;
  RETURN(SUCCESS);
}

/* ---- for tests --------------------------------------------------------- */

/* Resets all state. REQUIRES: no communicator is in use. */
void fake_reset(void) {
  LOCKED;
  comms = NULL, streams = NULL, posted = last_posted = NULL;
  refused[0] = '\0', blocks_group_end = 0, num_events = num_synchronizes = 0;
  pthread_mutex_unlock(&mutex);
}

/* Sets whether another thread captures a graph in CUDA's default mode. */
void fake_capture(int does) {
  LOCKED;
  is_capturing = does;
  pthread_mutex_unlock(&mutex);
}

/* Makes calls of the function `name` return `code`; 0 ends this. */
void fake_refuse(const char* name, int code) {
  LOCKED;
  snprintf(refused, sizeof refused, "%s", name);
  refusal = code;
  pthread_mutex_unlock(&mutex);
}

/* Sets whether ncclGroupEnd blocks until its communicator is aborted. */
void fake_block_groups(int does) {
  LOCKED;
  blocks_group_end = does;
  pthread_mutex_unlock(&mutex);
}

/* Returns the operations of the rank's newest communicator, one line per group. */
const char* fake_log(int rank) {
  const char* found = "";
  LOCKED;
  for (Comm* each = comms; each != NULL; each = each->next) {
    if (each->rank == rank) { found = each->log; break; }
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

/* Makes the rank's newest communicator report `code` as an asynchronous error. */
void fake_fail(int rank, int code) {
  LOCKED;
  for (Comm* each = comms; each != NULL; each = each->next) {
    if (each->rank == rank) { each->async_error = code; break; }
  }
  pthread_mutex_unlock(&mutex);
}

/* Enqueues a write on the stream, which waits until it is released. */
void* fake_hold(Stream* stream, char* memory, int value, size_t num_bytes) {
  LOCKED;
  Item* item = put(stream, HELD_WRITE);
  item->memory = memory, item->value = value, item->num_bytes = num_bytes;
  pthread_mutex_unlock(&mutex);
  return item;
}

void fake_release(Item* item) {
  LOCKED;
  item->is_released = 1;
  pthread_mutex_unlock(&mutex);
}

int fake_num_synchronizes(void) { LOCKED; RETURN(num_synchronizes); }
int fake_num_events(void) { LOCKED; RETURN(num_events); }
int fake_is_aborted(int rank) {
  LOCKED;
  for (Comm* each = comms; each != NULL; each = each->next) {
    if (each->rank == rank) RETURN(each->is_aborted);
  }
  RETURN(0);
}
