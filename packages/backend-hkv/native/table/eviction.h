// Choosing who leaves, and handing over what left.
#ifndef SPARRING_HKV_TABLE_EVICTION_H_
#define SPARRING_HKV_TABLE_EVICTION_H_

#include <cstdint>
#include <vector>

#include "index.h"
#include "sparring/storage_abi.h"

namespace sparring::hkv {

// The order in which rows leave: lower scores first, then smaller keys.
struct Rank {
  uint64_t score;
  int64_t key;

  friend bool operator<(const Rank& a, const Rank& b) {
    return a.score != b.score ? a.score < b.score : a.key < b.key;
  }
};

// The entry of the bucket that leaves first; no place if it is empty.
// REQUIRES: the table keeps scores.
Place first_to_leave(Bucket* bucket);

// Fills `leaving` with the entries of the whole index that leave first, in that
// order: as many as it has capacity for, so that nothing here can fail.
// REQUIRES: the table keeps scores.
void first_to_leave(const Index& index, std::vector<Rank>& leaving);

// Collects rows that leave and hands them over in batches, since a call of the
// sink for each row would cost more than the row.
class EvictionBuffer {
 public:
  // Takes all the memory that it will need. Throws std::bad_alloc.
  EvictionBuffer(const SparringEvictionSink& sink, uint64_t row_bytes, uint64_t most);

  void add(int64_t key, const char* row, uint64_t score);
  // Hands over what is left. Throws StatusError if the sink ever refused; rows
  // that it did not take are gone.
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
