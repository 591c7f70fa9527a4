// Admission filters: which new keys get a row.
//
// A step calls the filter once for each key that has a gradient but no row. It therefore
// counts the steps that trained a key, not its occurrences. This number does not depend
// on how a batch is split into micro-batches or over ranks.
//
// Deciding and counting are two calls, so that a step that fails in between counts
// nothing:
//
//   decide(keys) ──► the step is applied to the admitted keys ──► record(keys)
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

  // Decides for each key, without counting. A decision does not depend on the other
  // keys of the call or on their order.
  void decide(const int64_t* keys,          // (n) int64, unique
              int64_t count,                // n
              int64_t step,                 // the number of this step
              uint8_t* is_admitted) const;  // out (n)

  // Counts the keys of an applied step. It does not fail: if there is no capacity for a
  // key, its counter is dropped or not created, and num_forgotten() increases.
  void record(const int64_t* keys,         // (n) int64, unique
              const uint8_t* is_admitted,  // (n): result of decide()
              int64_t count);              // n

  // Calls decide() and record() atomically.
  void admit(const int64_t* keys, int64_t count, int64_t step, uint8_t* is_admitted);

  // Bytes of counters.
  int64_t memory_bytes() const;
  // Number of keys whose counter was dropped or not created because of the capacity.
  int64_t num_forgotten() const;

  // Save and load all counters; see docs/format/admission.md. Throw std::bad_alloc.
  std::string save() const;
  // Throws std::invalid_argument, without changes, for bytes that save() of an equal
  // filter did not return.
  void load(std::string_view saved);
  // Merges the saved counters of an equal filter of another rank, so that every count is at least
  // as high as there. Throws like load(), and if the filter does not support it: frequency filters
  // are merged key by key with record() instead.
  void join(std::string_view saved);

 private:
  // Implementations of the methods above, called with the lock.
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
