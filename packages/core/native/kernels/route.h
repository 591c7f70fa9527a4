// The partitions of keys, and the distribution of keys over ranks.
#ifndef SPARRING_KERNELS_ROUTE_H_
#define SPARRING_KERNELS_ROUTE_H_

#include <cstdint>

#include "sparring/storage_abi.h"

namespace sparring::kernels {

// partitions[i] = partition_of(keys[i]), see sparring/initial_value.h.
void partition(const SparringExecutor* executor,
               const int64_t* keys,    // (u) int64
               int64_t count,          // u
               uint16_t* partitions);  // out (u) uint16, 0 to 4,095

struct RouteArguments {
  const int64_t* keys;    // (u) int64
  int64_t count;          // u
  const int32_t* owners;  // (4096) int32, the rank of each partition
  int32_t world_size;
  int64_t* order;         // out (u) int64
  int64_t* offsets;       // out (world_size + 1) int64, from 0 to u
};

// Groups keys by owner: the keys of rank r are keys[order[i]] for i from offsets[r] to
// offsets[r + 1], in their original order. The result is the same for any number of
// threads.
//
// REQUIRES: 0 <= owners[p] < world_size for every p.
// Throws std::bad_alloc.
void route(const SparringExecutor* executor, const RouteArguments& arguments);

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_ROUTE_H_
