#include "gradients/accumulator.h"

#include <cstring>
#include <utility>

#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::gradients {

using kernels::grain_for;
using kernels::parallel_for;

template <class T>
int64_t GradientAccumulator<T>::memory_bytes() const {
  return keys_.memory_bytes() + gradients_.memory_bytes() + index_.memory_bytes() +
         static_cast<int64_t>(slots_.capacity() * sizeof(int64_t));
}

template <class T>
void GradientAccumulator<T>::add(const SparringExecutor* executor, const int64_t* keys,
                                 const T* gradients, int64_t count) {
  if (count == 0) return;
  const kernels::RowKernels<T>& loops = kernels::row_kernels<T>();
  keys_.reserve(size_ + count);
  gradients_.reserve((size_ + count) * dim_);
  if (size_ == 0) {
    append(executor, nullptr, keys, gradients, count);
    return;
  }

  constexpr int64_t kAhead = 12;
  const auto place = [&](const int64_t* some, int64_t num_some, const auto& visit) {
    for (int64_t i = 0; i < num_some; ++i) {
      if (i + kAhead < num_some) index_.prefetch(index_.hash(some[i + kAhead]));
      visit(i, index_.hash(some[i]));
    }
  };
  slots_.resize(static_cast<size_t>(count));
  if (is_indexed_) {
    index_.reserve(size_ + count);
  } else {
    index_.reset(size_ + count);
    place(keys_.data(), size_, [&](int64_t i, uint64_t hash) {
      index_.find_or_insert(hash, keys_.data()[i], static_cast<uint32_t>(i));
    });
    is_indexed_ = true;
  }
  place(keys, count, [&](int64_t i, uint64_t hash) {
    const auto next = static_cast<uint32_t>(size_);
    const uint32_t slot = index_.find_or_insert(hash, keys[i], next);
    const bool is_new = slot == next;
    keys_.data()[size_] = keys[i];
    size_ += is_new;
    slots_[static_cast<size_t>(i)] = is_new ? ~int64_t{slot} : int64_t{slot};
  });

  const kernels::AccumulateArguments<T> arguments{gradients, slots_.data(), gradients_.data(),
                                                  dim_};
  parallel_for(executor, count, grain_for(2 * dim_ * static_cast<int64_t>(sizeof(T))),
               [&](int64_t begin, int64_t end) { loops.accumulate(arguments, begin, end); });
}

template <class T>
void GradientAccumulator<T>::add_at(const SparringExecutor* executor, const int64_t* places,
                                    int64_t count, const int64_t* keys, const T* gradients) {
  if (count == 0) return;
  if (size_ == 0) {
    keys_.reserve(count);
    gradients_.reserve(count * dim_);
    append(executor, places, keys, gradients, count);
    return;
  }
  GradientAccumulator part(dim_);
  part.add_at(executor, places, count, keys, gradients);
  add(executor, part.keys_.data(), part.gradients_.data(), count);
}

template <class T>
void GradientAccumulator<T>::append(const SparringExecutor* executor, const int64_t* places,
                                    const int64_t* keys, const T* gradients, int64_t count) {
  const int64_t row_bytes = dim_ * static_cast<int64_t>(sizeof(T));
  parallel_for(executor, count, grain_for(2 * row_bytes), [&](int64_t begin, int64_t end) {
    if (places == nullptr) {
      std::memcpy(keys_.data() + begin, keys + begin,
                  static_cast<size_t>(end - begin) * sizeof(int64_t));
      std::memcpy(gradients_.data() + begin * dim_, gradients + begin * dim_,
                  static_cast<size_t>((end - begin) * row_bytes));
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      keys_.data()[i] = keys[places[i]];
      std::memcpy(gradients_.data() + i * dim_, gradients + places[i] * dim_,
                  static_cast<size_t>(row_bytes));
    }
  });
  size_ = count;
}

template <class T>
typename GradientAccumulator<T>::Sums GradientAccumulator<T>::take() {
  Sums sums{std::move(keys_), std::move(gradients_), size_};
  keys_ = {};
  gradients_ = {};
  size_ = 0;
  is_indexed_ = false;
  return sums;
}

template <class T>
void GradientAccumulator<T>::clear() {
  *this = GradientAccumulator(dim_);
}

template class GradientAccumulator<float>;
template class GradientAccumulator<double>;

}  // namespace sparring::gradients
