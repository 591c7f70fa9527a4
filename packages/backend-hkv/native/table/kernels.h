// The loops that decide the speed of the table, compiled once for each kind of
// processor and chosen at run time. kernel_body.h is their one source; every
// kernels_*.cc compiles it with its own flags into a namespace of its own. So
// that no code for one processor is ever linked for all, the body uses nothing
// but plain structs, intrinsics, memcpy, memset and functions that are always
// inlined.
//
// Threads: any number concurrently on disjoint outputs, while no thread
// writes to the index, nor to the rows concerned (scatter: nor reads them).
#ifndef SPARRING_HKV_TABLE_KERNELS_H_
#define SPARRING_HKV_TABLE_KERNELS_H_

#include <cstdint>
#include <vector>

#include "views.h"

// Keys that go through the stages together; see kernel_body.h. Defined otherwise
// only to measure what it is worth (benchmarks/techniques.py).
#ifndef SPARRING_HKV_BLOCK
#define SPARRING_HKV_BLOCK 32
#endif

namespace sparring::hkv {

// The part of each row that is wanted, and where it goes.
struct RowOutput {
  ArenaView rows;
  uint64_t begin;  // byte range of a row
  uint64_t end;
  char* out;  // (n, stride) bytes
  uint64_t stride;
  // The output of the whole call is too large for any cache: write past them,
  // where alignment allows.
  bool is_large;
  // Some keys are there and some are not, as it was of late: only how fast it is depends on it.
  bool is_mixed;
};

struct RowInput {
  char* const* rows;  // (n), or NULL: none
  uint64_t row_bytes;
  const char* in;     // (n, stride) bytes, of which the first row_bytes count
  uint64_t stride;
};

// The part of each row that is wanted, and who is to see it, as in storage_abi.h.
struct RowVisitor {
  ArenaView rows;
  uint64_t begin;  // byte range of a row
  uint64_t end;
  int32_t (*show)(void* context, int64_t begin, int64_t count, const void* const* rows);
  void* context;
};

struct Kernels {
  const char* name;

  // For each key its row, or kNoRow.
  //   keys    // (n) int64
  //   rows    // out (n) uint32
  //   places  // out (n) Place, or nullptr
  void (*locate)(const IndexView& index, const int64_t* keys, int64_t n, uint32_t* rows,
                 Place* places);

  // locate, then the rows themselves; zeros for absent keys.
  //   found   // out (n) uint8
  void (*find)(const IndexView& index, const RowOutput& output, const int64_t* keys, int64_t n,
               uint8_t* found);

  // locate, then shows where the rows lie, a block at a time, once their bytes are
  // on their way. Keys may repeat. Returns what `show` returned last: the first
  // that is not zero ends the visit.
  int32_t (*visit)(const IndexView& index, const RowVisitor& visitor, const int64_t* keys,
                   int64_t n);

  // Rows by number; kNoRow gives zeros.
  void (*gather)(const RowOutput& output, const uint32_t* numbers, int64_t n);

  // The opposite: writes whole rows, and skips NULL.
  void (*scatter)(const RowInput& input, int64_t n);
};

// Those that this processor can run, the best first; the last is portable.
const std::vector<const Kernels*>& available_kernels();

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_KERNELS_H_
