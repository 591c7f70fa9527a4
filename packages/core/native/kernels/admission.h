// Admission filters: which unseen keys may have a row.
//
// A step asks once for each key that it has a gradient for and that has no row.
// So what is counted is steps in which a key was trained on, not occurrences:
// that number is the same however a batch is cut into micro-batches or ranks.
//
// Asking and counting are two calls, so that a step that fails in between has
// counted nothing:
//
//   decide(keys) ──► the step is applied to what was admitted ──► record(keys)
//
// Safe for use by several threads at once.
#ifndef SPARRING_KERNELS_ADMISSION_H_
#define SPARRING_KERNELS_ADMISSION_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace sparring::kernels {

class AdmissionFilter {
 public:
  virtual ~AdmissionFilter() = default;

  // Answers for each key, and counts nothing. An answer does not depend on the
  // other keys of the call, nor on their order.
  void decide(const int64_t* keys,          // (n) int64, unique
              int64_t count,                // n
              int64_t step,                 // the number of this step
              uint8_t* is_admitted) const;  // out (n)

  // Counts the keys of a step that was applied. Does not fail: a key for which
  // there is no room is not counted, or forgotten, and is counted as such.
  void record(const int64_t* keys,         // (n) int64, unique
              const uint8_t* is_admitted,  // (n): what decide() answered
              int64_t count);              // n

  // Both, with nothing in between.
  void admit(const int64_t* keys, int64_t count, int64_t step, uint8_t* is_admitted);

  // Bytes of counters.
  int64_t memory_bytes() const;
  // Keys whose counter was dropped, or never made, for want of room.
  int64_t num_forgotten() const;

  // All that was counted, and back: docs/format/admission.md. Throw std::bad_alloc.
  std::string save() const;
  // Throws std::invalid_argument for bytes that save() of an equal filter did not
  // give; then the filter is as before.
  void load(std::string_view saved);
  // Adds what an equal filter of another rank has saved, so that every key was counted at
  // least as often as there. Throws as load(), and where a filter cannot say so: frequency
  // is joined key by key instead, by record().
  void join(std::string_view saved);

 private:
  // The methods above, called under the lock.
  virtual void decide_impl(const int64_t* keys, int64_t count, int64_t step,
                           uint8_t* is_admitted) const = 0;
  virtual void record_impl(const int64_t* keys, const uint8_t* is_admitted, int64_t count) = 0;
  virtual int64_t memory_bytes_impl() const = 0;
  virtual int64_t num_forgotten_impl() const { return 0; }
  virtual std::string save_impl() const = 0;
  virtual void load_impl(std::string_view saved) = 0;
  virtual void join_impl(std::string_view saved);

  mutable std::mutex mutex_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_ADMISSION_H_
