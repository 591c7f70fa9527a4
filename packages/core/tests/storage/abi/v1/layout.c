/* Prints where every member of ABI 1.0 lies; built against two headers, the output must agree. */
#include <stdio.h>

#include HEADER

#define AT(type, member) \
  printf(#type "." #member " %zu+%zu\n", offsetof(type, member), sizeof(((type*)0)->member))

int main(void) {
  AT(SparringError, message); AT(SparringError, release); AT(SparringError, owner);
  AT(SparringDevice, type); AT(SparringDevice, id);
  AT(SparringExecutor, struct_bytes); AT(SparringExecutor, self);
  AT(SparringExecutor, concurrency); AT(SparringExecutor, parallel_for);
  AT(SparringCall, struct_bytes); AT(SparringCall, device); AT(SparringCall, stream);
  AT(SparringCall, executor); AT(SparringCall, error);
  AT(SparringColumns, begin); AT(SparringColumns, end);
  AT(SparringFind, call); AT(SparringFind, count); AT(SparringFind, keys);
  AT(SparringFind, columns); AT(SparringFind, rows); AT(SparringFind, row_stride);
  AT(SparringFind, found);
  AT(SparringEvictionSink, receive); AT(SparringEvictionSink, context);
  AT(SparringUpsert, call); AT(SparringUpsert, count); AT(SparringUpsert, keys);
  AT(SparringUpsert, rows); AT(SparringUpsert, row_stride); AT(SparringUpsert, scores);
  AT(SparringUpsert, evicted);
  AT(SparringErase, call); AT(SparringErase, count); AT(SparringErase, keys);
  AT(SparringErase, erased);
  AT(SparringTouch, call); AT(SparringTouch, count); AT(SparringTouch, keys);
  AT(SparringTouch, scores);
  AT(SparringEvict, call); AT(SparringEvict, wanted); AT(SparringEvict, evicted);
  AT(SparringEvict, sink);
  AT(SparringScan, call); AT(SparringScan, cursor); AT(SparringScan, capacity);
  AT(SparringScan, columns); AT(SparringScan, count); AT(SparringScan, keys);
  AT(SparringScan, rows); AT(SparringScan, scores); AT(SparringScan, is_done);
  AT(SparringStat, call); AT(SparringStat, capabilities); AT(SparringStat, row_bytes);
  AT(SparringStat, size); AT(SparringStat, capacity); AT(SparringStat, memory_bytes);
  AT(SparringSetOption, call); AT(SparringSetOption, name); AT(SparringSetOption, value);
  AT(SparringPlain, call);
  AT(SparringVersion, major); AT(SparringVersion, minor);
  AT(SparringStorage, version); AT(SparringStorage, release);
  AT(SparringStorage, struct_bytes); AT(SparringStorage, distribution);
  AT(SparringStorage, self); AT(SparringStorage, find); AT(SparringStorage, upsert);
  AT(SparringStorage, erase); AT(SparringStorage, scan); AT(SparringStorage, stat);
  AT(SparringStorage, flush); AT(SparringStorage, clear); AT(SparringStorage, touch);
  AT(SparringStorage, evict); AT(SparringStorage, set_option);
  printf("status %d %d %d %d %d %d %d %d %d %d\n", SPARRING_OK, SPARRING_INVALID_ARGUMENT,
         SPARRING_UNSUPPORTED, SPARRING_CLOSED, SPARRING_CAPACITY, SPARRING_OUT_OF_MEMORY,
         SPARRING_IO, SPARRING_DEADLINE, SPARRING_CORRUPT, SPARRING_INTERNAL);
  printf("capabilities %u %u %u %u %u\n", SPARRING_CONCURRENT_READS, SPARRING_PERSISTENT,
         SPARRING_BOUNDED, SPARRING_EVICTS, SPARRING_SCORES_GIVEN);
  printf("capsule %s\n", SPARRING_STORAGE_CAPSULE);
  return 0;
}
