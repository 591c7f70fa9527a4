// Adds gradients up by key over the micro-batches of a step.
//
//   keys_       (size) int64, in the order in which they first came
//   gradients_  (size, dim), the sum for each key
//   index_      key → place in both; made when a second batch comes, because most
//               steps have one batch only, and that is a plain copy
//
// INVARIANTS
//   1. keys_ holds no key twice.
//   2. is_indexed_ implies that index_ holds every key of keys_.
//   3. The additions for a key are taken in the order of the batches, so the sums do
//      not depend on the number of threads.
//
// Not safe for use by two threads at once.
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
  // (size) in the order in which they first came. Valid until the next call that adds or takes.
  const int64_t* keys() const { return keys_.data(); }
  int64_t memory_bytes() const;

  // Adds a batch. REQUIRES: no key twice in it; size() + count below 2^31.
  // Throws std::bad_alloc, with nothing added.
  void add(const SparringExecutor* executor,
           const int64_t* keys,  // (u) int64
           const T* gradients,   // (u, dim)
           int64_t count);       // u

  // Hands over what has been added up, and resets the accumulator.
  Sums take();

  // Drops what has been added up, and its memory.
  void clear();

 private:
  void append(const SparringExecutor* executor, const int64_t* keys, const T* gradients,
              int64_t count);

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
