// Limits of single calls, and of the bytes and the number of all concurrent calls.
#ifndef SPARRING_SERVE_SERVER_LIMITS_H_
#define SPARRING_SERVE_SERVER_LIMITS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "wire/status_error.h"
#include "wire/text.h"

namespace sparring::serve {

// Admits calls as long as their total size is within a limit. Thread-safe.
class Admission {
 public:
  explicit Admission(int64_t max_bytes) : max_bytes_(max_bytes) {}

  int64_t bytes_in_flight() const { return bytes_.load(std::memory_order_relaxed); }

  // Counts the bytes of a call while it exists; one that was created or left without a call counts
  // none. Throws StatusError (RESOURCE_EXHAUSTED) if the limit would be exceeded; a single call is always
  // admitted.
  class Admitted {
   public:
    Admitted() = default;
    Admitted(Admission& admission, int64_t num_bytes) : admission_(&admission), num_bytes_(num_bytes) {
      admission.enter(num_bytes);
    }
    Admitted(Admitted&& other) noexcept { *this = std::move(other); }
    Admitted& operator=(Admitted&& other) noexcept {
      std::swap(admission_, other.admission_);
      std::swap(num_bytes_, other.num_bytes_);
      return *this;
    }
    ~Admitted() {
      if (admission_ != nullptr) admission_->bytes_ -= num_bytes_;
    }

   private:
    Admission* admission_ = nullptr;
    int64_t num_bytes_ = 0;
  };

 private:
  void enter(int64_t num_bytes) {
    int64_t before = bytes_.load();
    do {
      if (before != 0 && before + num_bytes > max_bytes_) {
        throw StatusError(StatusCode::RESOURCE_EXHAUSTED,
                          "a call of " + with_commas(num_bytes) + " bytes was rejected: " +
                              with_commas(before) + " of " + with_commas(max_bytes_) +
                              " bytes are in flight; use another replica, or retry later",
                          "bytes_in_flight");
      }
    } while (!bytes_.compare_exchange_weak(before, before + num_bytes));
  }

  const int64_t max_bytes_;
  std::atomic<int64_t> bytes_{0};
};

// Counts the calls of one kind whose message has arrived, up to a maximum. Thread-safe.
class CallLane {
 public:
  explicit CallLane(int most) : max_calls(most) {}

  // Counts a call unless there are already `max_calls`; returns whether it was counted.
  bool enter() {
    if (num_calls_.fetch_add(1) < max_calls) return true;
    num_calls_.fetch_sub(1);
    return false;
  }
  void leave() { num_calls_.fetch_sub(1); }

  const int max_calls;

 private:
  std::atomic<int> num_calls_{0};
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_LIMITS_H_
