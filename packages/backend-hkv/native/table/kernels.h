// The loops that determine the speed of the table, compiled once per processor
// type and selected at run time. kernel_body.h is the common source; every
// kernels_*.cc compiles it with its own flags in its own namespace. To make sure
// that code for one processor is never linked for others, the body uses only
// plain structs, intrinsics, memcpy, memset and functions that are always
// inlined.
//
// Threads: any number concurrently on disjoint outputs, while no thread writes to
// the index or to the rows concerned (scatter: or reads them).
#ifndef SPARRING_HKV_TABLE_KERNELS_H_
#define SPARRING_HKV_TABLE_KERNELS_H_

#include <cstdint>
#include <vector>

#include "views.h"

// Number of keys that pass through the stages together; see kernel_body.h. Other
// values are only used to measure its effect (benchmarks/techniques.py).
#ifndef SPARRING_HKV_BLOCK
#define SPARRING_HKV_BLOCK 32
#endif

namespace sparring::hkv {

// The requested part of each row, and its destination.
struct RowOutput {
  ArenaView rows;
  uint64_t begin;  // byte range of a row
  uint64_t end;
  char* out;  // (n, stride) bytes
  uint64_t stride;
  // The output of the whole call is larger than the caches: write with streaming
  // stores if alignment permits.
  bool is_large;
  // In recent calls only some keys existed. Affects only the speed.
  bool is_mixed;
};

struct RowInput {
  char* const* rows;  // (n), NULL if there is no row
  uint64_t row_bytes;
  const char* in;     // (n, stride) bytes; the first row_bytes are used
  uint64_t stride;
};

// The requested part of each row, and the callback that gets it, as in storage_abi.h.
struct RowVisitor {
  ArenaView rows;
  uint64_t begin;  // byte range of a row
  uint64_t end;
  int32_t (*show)(void* context, int64_t begin, int64_t count, const void* const* rows);
  void* context;
};

struct Kernels {
  const char* name;

  // Finds the row of each key, or kNoRow.
  //   keys    // (n) int64
  //   rows    // out (n) uint32
  //   places  // out (n) Place, or nullptr
  void (*locate)(const IndexView& index, const int64_t* keys, int64_t n, uint32_t* rows,
                 Place* places);

  // locate, then copies the rows; zeros for missing keys.
  //   found   // out (n) uint8
  void (*find)(const IndexView& index, const RowOutput& output, const int64_t* keys, int64_t n,
               uint8_t* found);

  // locate, then passes the addresses of rows to the callback, a block at a time,
  // after prefetching them. Keys may repeat. Returns the last result of `show`;
  // the first one that is not zero ends the visit.
  int32_t (*visit)(const IndexView& index, const RowVisitor& visitor, const int64_t* keys,
                   int64_t n);

  // Copies rows by number; kNoRow gives zeros.
  void (*gather)(const RowOutput& output, const uint32_t* numbers, int64_t n);

  // The reverse: writes whole rows and skips NULL.
  void (*scatter)(const RowInput& input, int64_t n);
};

// The kernels that this processor supports, best first; the last is portable.
const std::vector<const Kernels*>& available_kernels();

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_KERNELS_H_
