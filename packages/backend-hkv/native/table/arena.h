// Elements of one size, numbered from 0, whose addresses never change.
//
// Memory is a list of chunks. A chunk is address space for 2^shift elements
// (64 MiB or slightly less). It is reserved at once and committed from its
// start as elements are requested. Therefore growing moves nothing, and no call
// allocates more than it needs:
//
//   chunk 0   |####################|      # committed, zero until written
//   chunk 1   |####################|      . reserved, uses no memory
//   chunk 2   |######..............|
//
// Commit steps double up to 2 MiB and stay at 2 MiB, so that a small arena is
// small and a large one uses huge pages (if the system supports them). Chunks
// start at 2 MiB boundaries for the same reason.
//
// Invariants
//   1. Every chunk except the last is completely committed.
//   2. committed_bytes() <= bytes_for(element_bytes, limit); no page outside
//      the committed part is ever resident.
//   3. Bytes that were never written are zero.
//
// Threads: at() and view() may run concurrently; all other methods are exclusive.
#ifndef SPARRING_HKV_TABLE_ARENA_H_
#define SPARRING_HKV_TABLE_ARENA_H_

#include <cstdint>
#include <vector>

#include "views.h"

namespace sparring::hkv {

class Arena {
 public:
  // `limit`: maximum number of elements that will ever be requested.
  // REQUIRES: element_bytes >= 1, limit >= 1.
  Arena(uint64_t element_bytes, uint64_t limit);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes elements [0, count) usable.
  // Throws std::bad_alloc without changing anything.
  // REQUIRES: count <= limit.
  void commit(uint64_t count);

  char* at(uint32_t index) const { return view().at(index); }
  ArenaView view() const { return {chunks_.data(), element_bytes_, shift_, mask_}; }

  uint64_t limit() const { return limit_; }
  // Bytes of the committed pages and of the list of chunks.
  uint64_t memory_bytes() const;

  // The maximum of memory_bytes() for this limit.
  static uint64_t bytes_for(uint64_t element_bytes, uint64_t limit);

 private:
  uint64_t chunk_bytes(uint64_t chunk) const;  // pages of a whole chunk
  void add_chunk();
  void commit_last_chunk(uint64_t bytes);

  uint64_t element_bytes_;
  uint64_t limit_;
  uint32_t shift_;
  uint32_t mask_;
  std::vector<char*> chunks_;
  uint64_t committed_in_last_ = 0;
  uint64_t committed_bytes_ = 0;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_ARENA_H_
