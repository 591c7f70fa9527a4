// Admits a key in each step with probability p, whatever came before: a function of
// (seed, step, key), so it remembers nothing.
#ifndef SPARRING_KERNELS_PROBABILITY_FILTER_H_
#define SPARRING_KERNELS_PROBABILITY_FILTER_H_

#include "kernels/admission.h"

namespace sparring::kernels {

class ProbabilityFilter final : public AdmissionFilter {
 public:
  // REQUIRES: 0 <= p <= 1.
  ProbabilityFilter(double p, uint64_t seed) : p_(p), seed_(seed) {}

  void admit(const int64_t* keys, int64_t count, int64_t step,
             uint8_t* is_admitted) noexcept override;
  int64_t memory_bytes() const override { return sizeof(*this); }
  std::string save() const override;
  void load(std::string_view saved) override;

 private:
  double p_;
  uint64_t seed_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_PROBABILITY_FILTER_H_
