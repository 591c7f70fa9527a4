#include "kernels/probability_filter.h"

#include <bit>

#include "kernels/saved_bytes.h"
#include "sparring/initial_value.h"

namespace sparring::kernels {
namespace {

// Initial values count with the same Philox key, and their counters would be those of
// the first steps.
constexpr uint64_t kOwnStream = 0x61646d697373696fu;

}  // namespace

ProbabilityFilter::ProbabilityFilter(double p, uint64_t philox_key)
    : p_(p), philox_key_(mix64(philox_key ^ kOwnStream)) {}

void ProbabilityFilter::decide_impl(const int64_t* keys, int64_t count, int64_t step,
                                    uint8_t* is_admitted) const {
  const auto when = static_cast<uint64_t>(step);
  for (int64_t i = 0; i < count; ++i) {
    const PhiloxBlock random = philox_of(keys[i], static_cast<uint32_t>(when),
                                         static_cast<uint32_t>(when >> 32), philox_key_);
    const uint64_t bits = uint64_t{random.words[1]} << 32 | random.words[0];
    is_admitted[i] = static_cast<double>(bits >> 11) * 0x1p-53 < p_;
  }
}

std::string ProbabilityFilter::save_impl() const {
  SavedWriter writer(SavedKind::probability);
  writer.add(std::bit_cast<uint64_t>(p_));
  writer.add(philox_key_);
  return writer.finish();
}

void ProbabilityFilter::load_impl(std::string_view saved) {
  SavedReader reader(saved, SavedKind::probability);
  reader.expect(std::bit_cast<uint64_t>(p_), "the bit pattern of p");
  reader.expect(philox_key_, "the table's seed");
  reader.expect_end();
}

}  // namespace sparring::kernels
