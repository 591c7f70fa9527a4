// Memory that grows in place if the system supports it, and that can be passed to NumPy.
#ifndef SPARRING_GRADIENTS_BUFFER_H_
#define SPARRING_GRADIENTS_BUFFER_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace sparring::gradients {

// Elements are plain, uninitialized numbers. `realloc` remaps the pages of a large block
// instead of copying its bytes, which a vector cannot do.
template <class T>
class Buffer {
 public:
  T* data() { return memory_.get(); }
  const T* data() const { return memory_.get(); }
  int64_t capacity() const { return capacity_; }
  int64_t memory_bytes() const { return capacity_ * static_cast<int64_t>(sizeof(T)); }

  // Grows to a capacity of `count` elements and keeps the existing ones. If it throws
  // std::bad_alloc, nothing has changed.
  void reserve(int64_t count) {
    if (count <= capacity_) return;
    // The first allocation has the exact size, because many buffers are filled only once.
    const int64_t wanted = capacity_ == 0 ? count : std::max(count, capacity_ + capacity_ / 2);
    void* moved = std::realloc(memory_.get(), static_cast<size_t>(wanted) * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    static_cast<void>(memory_.release());
    memory_.reset(static_cast<T*>(moved));
    capacity_ = wanted;
  }

  // Transfers ownership of the memory, to be freed with std::free. The buffer is then empty.
  T* release() {
    capacity_ = 0;
    return memory_.release();
  }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };

  std::unique_ptr<T, Free> memory_;
  int64_t capacity_ = 0;
};

}  // namespace sparring::gradients

#endif  // SPARRING_GRADIENTS_BUFFER_H_
