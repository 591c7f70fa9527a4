// Selects rows to evict, and passes evicted rows to the caller.
#ifndef SPARRING_HKV_TABLE_EVICTION_H_
#define SPARRING_HKV_TABLE_EVICTION_H_

#include <cstdint>
#include <vector>

#include "index.h"
#include "sparring/storage_abi.h"

namespace sparring::hkv {

// The order of eviction: lower scores first, then smaller keys.
struct Rank {
  uint64_t score;
  int64_t key;

  friend bool operator<(const Rank& a, const Rank& b) {
    return a.score != b.score ? a.score < b.score : a.key < b.key;
  }
};

// The entry of the bucket that is evicted first; an invalid place if the bucket is empty.
// REQUIRES: the table stores scores.
Place first_to_leave(Bucket* bucket);

// Fills `leaving` with the entries of the whole index that are evicted first, in
// that order, up to its capacity, so that it cannot fail.
// REQUIRES: the table stores scores.
void first_to_leave(const Index& index, std::vector<Rank>& leaving);

// Collects evicted rows and passes them to the sink in batches, because one call
// per row would cost more than copying the row.
class EvictionBuffer {
 public:
  // Allocates all memory. Throws std::bad_alloc.
  EvictionBuffer(const SparringEvictionSink& sink, uint64_t row_bytes, uint64_t most);

  void add(int64_t key, const char* row, uint64_t score);
  // Passes the remaining rows to the sink. Throws StatusError if the sink ever
  // failed; rows that it did not accept are lost.
  void finish();

 private:
  void flush();

  SparringEvictionSink sink_;
  uint64_t row_bytes_;
  uint64_t batch_ = 0;
  uint64_t count_ = 0;
  bool is_refused_ = false;
  std::vector<int64_t> keys_;
  std::vector<char> rows_;
  std::vector<uint64_t> scores_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_EVICTION_H_
