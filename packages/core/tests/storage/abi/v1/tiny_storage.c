/* A whole storage in plain C against the frozen header: 64 rows in an array. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage_abi.h"

#define MAX_ROWS 64

typedef struct Tiny {
  SparringStorage storage;
  uint64_t row_bytes;
  int64_t size;
  int64_t keys[MAX_ROWS];
  char* rows;
  int* releases;
} Tiny;

static void free_message(SparringError* error) {
  free((void*)error->message);
  error->message = NULL;
}

static SparringStatus fail(SparringCall* call, SparringStatus status, const char* text) {
  char* copy = malloc(strlen(text) + 1);
  strcpy(copy, text);
  call->error.message = copy;
  call->error.release = free_message;
  return status;
}

static int64_t place_of(const Tiny* tiny, int64_t key) {
  for (int64_t i = 0; i < tiny->size; ++i) {
    if (tiny->keys[i] == key) return i;
  }
  return -1;
}

static SparringStatus find(void* self, SparringFind* a) {
  Tiny* tiny = self;
  const uint64_t bytes = a->columns.end - a->columns.begin;
  for (int64_t i = 0; i < a->count; ++i) {
    char* out = (char*)a->rows + (uint64_t)i * a->row_stride;
    const int64_t place = place_of(tiny, a->keys[i]);
    a->found[i] = place >= 0;
    if (place < 0) {
      memset(out, 0, bytes);
    } else {
      memcpy(out, tiny->rows + (uint64_t)place * tiny->row_bytes + a->columns.begin, bytes);
    }
  }
  return SPARRING_OK;
}

static SparringStatus upsert(void* self, SparringUpsert* a) {
  Tiny* tiny = self;
  int64_t num_new = 0;
  for (int64_t i = 0; i < a->count; ++i) num_new += place_of(tiny, a->keys[i]) < 0;
  if (tiny->size + num_new > MAX_ROWS) {
    return fail(&a->call, SPARRING_CAPACITY, "tiny storage holds 64 rows");
  }
  for (int64_t i = 0; i < a->count; ++i) {
    int64_t place = place_of(tiny, a->keys[i]);
    if (place < 0) {
      place = tiny->size++;
      tiny->keys[place] = a->keys[i];
    }
    memcpy(tiny->rows + (uint64_t)place * tiny->row_bytes,
           (const char*)a->rows + (uint64_t)i * a->row_stride, tiny->row_bytes);
  }
  return SPARRING_OK;
}

static SparringStatus erase(void* self, SparringErase* a) {
  Tiny* tiny = self;
  a->erased = 0;
  for (int64_t i = 0; i < a->count; ++i) {
    const int64_t place = place_of(tiny, a->keys[i]);
    if (place < 0) continue;
    const int64_t last = --tiny->size;
    tiny->keys[place] = tiny->keys[last];
    memmove(tiny->rows + (uint64_t)place * tiny->row_bytes,
            tiny->rows + (uint64_t)last * tiny->row_bytes, tiny->row_bytes);
    ++a->erased;
  }
  return SPARRING_OK;
}

static SparringStatus scan(void* self, SparringScan* a) {
  Tiny* tiny = self;
  const uint64_t bytes = a->columns.end - a->columns.begin;
  uint64_t at = a->cursor[0];
  for (a->count = 0; a->count < a->capacity && at < (uint64_t)tiny->size; ++at, ++a->count) {
    a->keys[a->count] = tiny->keys[at];
    if (a->scores != NULL) a->scores[a->count] = 0;
    if (a->rows != NULL) {
      memcpy((char*)a->rows + (uint64_t)a->count * bytes,
             tiny->rows + at * tiny->row_bytes + a->columns.begin, bytes);
    }
  }
  a->cursor[0] = at;
  a->is_done = at >= (uint64_t)tiny->size;
  return SPARRING_OK;
}

static SparringStatus stat_(void* self, SparringStat* a) {
  Tiny* tiny = self;
  a->capabilities = SPARRING_BOUNDED;
  a->row_bytes = tiny->row_bytes;
  a->size = tiny->size;
  a->capacity = MAX_ROWS;
  a->memory_bytes = sizeof(Tiny) + MAX_ROWS * tiny->row_bytes;
  return SPARRING_OK;
}

static SparringStatus flush(void* self, SparringPlain* a) {
  (void)self;
  (void)a;
  return SPARRING_OK;
}

static SparringStatus clear(void* self, SparringPlain* a) {
  (void)a;
  ((Tiny*)self)->size = 0;
  return SPARRING_OK;
}

static void release(SparringStorage* storage) {
  Tiny* tiny = storage->self;
  ++*tiny->releases;
  free(tiny->rows);
  free(tiny);
}

/* `major` lets the test pretend to another version; `releases` counts. */
SparringStorage* tiny_create(uint64_t row_bytes, uint32_t major, int* releases) {
  Tiny* tiny = calloc(1, sizeof(Tiny));
  tiny->row_bytes = row_bytes;
  tiny->rows = malloc(MAX_ROWS * row_bytes);
  tiny->releases = releases;
  tiny->storage.version.major = major;
  tiny->storage.version.minor = SPARRING_STORAGE_ABI_MINOR;
  tiny->storage.release = release;
  tiny->storage.struct_bytes = sizeof(SparringStorage);
  tiny->storage.distribution = "tiny-storage 1.0";
  tiny->storage.self = tiny;
  tiny->storage.find = find;
  tiny->storage.upsert = upsert;
  tiny->storage.erase = erase;
  tiny->storage.scan = scan;
  tiny->storage.stat = stat_;
  tiny->storage.flush = flush;
  tiny->storage.clear = clear;
  return &tiny->storage;
}
