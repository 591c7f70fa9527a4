// Counts the calling thread among those that compute, once however deep it nests.
#pragma once

#include <atomic>

namespace sparring::execution {

class ComputingScope {
 public:
  explicit ComputingScope(std::atomic<int>& num_computing)
      : num_computing_(is_counted_ ? nullptr : &num_computing) {
    if (num_computing_ != nullptr) {
      num_computing_->fetch_add(1, std::memory_order_relaxed);
      is_counted_ = true;
    }
  }

  ~ComputingScope() {
    if (num_computing_ != nullptr) {
      is_counted_ = false;
      num_computing_->fetch_sub(1, std::memory_order_relaxed);
    }
  }

  ComputingScope(const ComputingScope&) = delete;
  ComputingScope& operator=(const ComputingScope&) = delete;

  static bool is_counted() { return is_counted_; }

 private:
  static inline thread_local bool is_counted_ = false;
  std::atomic<int>* num_computing_;  // null where an outer scope counted already
};

}  // namespace sparring::execution
