// Admission filters: which unseen keys may have a row.
//
// A step asks once for each key that it has a gradient for and that has no row.
// So what is counted is steps in which a key was trained on, not occurrences:
// that number is the same however a batch is cut into micro-batches or ranks.
#ifndef SPARRING_KERNELS_ADMISSION_H_
#define SPARRING_KERNELS_ADMISSION_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace sparring::kernels {

class AdmissionFilter {
 public:
  virtual ~AdmissionFilter() = default;

  // Counts the keys, and answers for each. Not safe for use by two threads at once.
  // Does not fail: what it needs, it has from the beginning.
  virtual void admit(const int64_t* keys,    // (n) int64, unique
                     int64_t count,          // n
                     int64_t step,           // the number of this step
                     uint8_t* is_admitted) noexcept = 0;  // out (n)

  virtual int64_t memory_bytes() const = 0;

  // All that was counted, and back: docs/format/admission.md.
  virtual std::string save() const = 0;
  // Throws std::invalid_argument for bytes that save() of an equal filter did not
  // give; then the filter is as before.
  virtual void load(std::string_view saved) = 0;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_ADMISSION_H_
