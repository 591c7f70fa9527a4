// Elements of one size, numbered from 0, whose addresses never change.
//
// Memory is a list of chunks. A chunk is address space for 2^shift elements
// (64 MiB or a little less), reserved at once and committed from its beginning
// as elements are asked for. So growing moves nothing, and no call pays for
// more than it needs:
//
//   chunk 0   |####################|      # committed, zero until written
//   chunk 1   |####################|      . reserved, costs nothing
//   chunk 2   |######..............|
//
// Commit steps double up to 2 MiB and are 2 MiB from there on, so that a small
// arena is small and a large one is backed by huge pages (where the system has
// them). Chunks begin on 2 MiB boundaries for the same reason.
//
// Invariants
//   1. Every chunk but the last is committed whole.
//   2. committed_bytes() <= bytes_for(element_bytes, limit); no page outside
//      the committed part is ever resident.
//   3. Bytes that were never written read as zero.
//
// Threads: at() and view() concurrently; everything else alone.
#ifndef SPARRING_HKV_TABLE_ARENA_H_
#define SPARRING_HKV_TABLE_ARENA_H_

#include <cstdint>
#include <vector>

#include "views.h"

namespace sparring::hkv {

class Arena {
 public:
  // `limit`: the most elements that will ever be asked for.
  // REQUIRES: element_bytes >= 1, limit >= 1.
  Arena(uint64_t element_bytes, uint64_t limit);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes elements [0, count) usable.
  // Throws std::bad_alloc, and then everything is as before.
  // REQUIRES: count <= limit.
  void commit(uint64_t count);

  char* at(uint32_t index) const { return view().at(index); }
  ArenaView view() const { return {chunks_.data(), element_bytes_, shift_, mask_}; }

  uint64_t limit() const { return limit_; }
  // Committed pages and the list of chunks.
  uint64_t memory_bytes() const;

  // The most that memory_bytes() can become for this limit.
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
