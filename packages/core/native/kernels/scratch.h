// Memory that a thread keeps between calls.
//
// A call takes the thread's object and returns it at the end. A thread that waits inside
// a parallel loop may execute another call in the meantime, which finds no object and
// creates a new one.
#ifndef SPARRING_KERNELS_SCRATCH_H_
#define SPARRING_KERNELS_SCRATCH_H_

#include <cstdint>
#include <memory>
#include <utility>

namespace sparring::kernels {

// Maximum size that a thread keeps; anything larger is freed after the call.
inline constexpr int64_t kMostScratchBytes = 16 << 20;

// REQUIRES: T() and T::memory_bytes().
template <class T>
class Scratch {
 public:
  Scratch() : object_(std::move(kept())) {
    if (!object_) object_ = std::make_unique<T>();
  }
  ~Scratch() {
    if (object_->memory_bytes() <= kMostScratchBytes) kept() = std::move(object_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T& operator*() const { return *object_; }
  T* operator->() const { return object_.get(); }

 private:
  static std::unique_ptr<T>& kept() {
    thread_local std::unique_ptr<T> object;
    return object;
  }

  std::unique_ptr<T> object_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_SCRATCH_H_
