#include "kernels/probability_filter.h"

#include "kernels/hash.h"
#include "kernels/saved_bytes.h"

namespace sparring::kernels {
namespace {

constexpr std::string_view kMagic = "sparring.probability.1";

}  // namespace

void ProbabilityFilter::admit(const int64_t* keys, int64_t count, int64_t step,
                              uint8_t* is_admitted) noexcept {
  const uint64_t of_step = mix64(seed_ ^ mix64(static_cast<uint64_t>(step)));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = mix64(mix64(static_cast<uint64_t>(keys[i])) ^ of_step);
    // 53 bits make a double in [0, 1) exactly.
    is_admitted[i] = static_cast<double>(bits >> 11) * 0x1p-53 < p_;
  }
}

std::string ProbabilityFilter::save() const { return std::string(kMagic); }

void ProbabilityFilter::load(std::string_view saved) {
  SavedBytes bytes(saved);
  bytes.expect(kMagic);
  bytes.expect_end();
}

}  // namespace sparring::kernels
