// Sums gradients by key over the micro-batches of a step.
//
//   keys_       (size) int64, in the order in which they were first added
//   gradients_  (size, dim), the sum per key
//   index_      key → position in both; created for the second batch, because most steps
//               have only one batch, which is copied
//
// INVARIANTS
//   1. The keys in keys_ are distinct.
//   2. If is_indexed_ is true, index_ contains every key of keys_.
//   3. The gradients of a key are added in the order of the batches, so the sums do not
//      depend on the number of threads.
//
// Not safe for concurrent use.
#ifndef SPARRING_GRADIENTS_ACCUMULATOR_H_
#define SPARRING_GRADIENTS_ACCUMULATOR_H_

#include <cstdint>
#include <vector>

#include "gradients/buffer.h"
#include "kernels/key_index.h"
#include "sparring/storage_abi.h"

namespace sparring::gradients {

template <class T>
class GradientAccumulator {
 public:
  struct Sums {
    Buffer<int64_t> keys;  // (size) int64
    Buffer<T> gradients;   // (size, dim)
    int64_t size = 0;
  };

  // REQUIRES: dim >= 1.
  explicit GradientAccumulator(int64_t dim) : dim_(dim) {}

  int64_t dim() const { return dim_; }
  int64_t size() const { return size_; }
  // (size) in the order in which they were first added. Valid until the next add or take.
  const int64_t* keys() const { return keys_.data(); }
  int64_t memory_bytes() const;

  // Adds a batch. REQUIRES: its keys are distinct; size() + count below 2^31.
  // If it throws std::bad_alloc, nothing was added.
  void add(const SparringExecutor* executor,
           const int64_t* keys,  // (u) int64
           const T* gradients,   // (u, dim)
           int64_t count);       // u

  // Adds the keys and gradients at `places` (u), copied directly into an empty accumulator.
  void add_at(const SparringExecutor* executor, const int64_t* places, int64_t count,
              const int64_t* keys,  // int64, by place
              const T* gradients);  // (dim), by place

  // Returns the sums, and resets the accumulator.
  Sums take();

  // Drops the sums, and frees their memory.
  void clear();

 private:
  // `places` NULL: in the order of the arrays. REQUIRES: size() is 0, and there is room.
  void append(const SparringExecutor* executor, const int64_t* places, const int64_t* keys,
              const T* gradients, int64_t count);

  int64_t dim_;
  int64_t size_ = 0;
  bool is_indexed_ = false;
  Buffer<int64_t> keys_;
  Buffer<T> gradients_;
  std::vector<int64_t> slots_;  // scratch of add
  kernels::KeyIndex index_;
};

extern template class GradientAccumulator<float>;
extern template class GradientAccumulator<double>;

}  // namespace sparring::gradients

#endif  // SPARRING_GRADIENTS_ACCUMULATOR_H_
