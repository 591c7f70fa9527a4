// Admits a key in each step with probability p, independently of earlier steps. The decision
// is a function of (seed, step, key), so the filter has no state:
//
//   words 0 and 1 of Philox4x32-10 for the counter (low half of key, high half of
//   key, low half of step, high half of step) form 64 bits. The key is admitted if
//   their upper 53 bits, divided by 2^53, are below p.
#ifndef SPARRING_KERNELS_PROBABILITY_FILTER_H_
#define SPARRING_KERNELS_PROBABILITY_FILTER_H_

#include "kernels/admission.h"

namespace sparring::kernels {

class ProbabilityFilter final : public AdmissionFilter {
 public:
  // `philox_key`: the table's, see sparring/initial_value.h; initial values use other bits of it.
  // REQUIRES: 0 <= p <= 1.
  ProbabilityFilter(double p, uint64_t philox_key);

 private:
  void decide_impl(const int64_t* keys, int64_t count, int64_t step,
                   uint8_t* is_admitted) const override;
  void record_impl(const int64_t*, const uint8_t*, int64_t) override {}
  int64_t memory_bytes_impl() const override { return 0; }
  std::string save_impl() const override;
  void load_impl(std::string_view saved) override;

  const double p_;
  const uint64_t philox_key_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_PROBABILITY_FILTER_H_
