// Computes scores within one call: plain data and arithmetic, so that it can be
// passed to a kernel. policy.h describes the scores of each policy.
#ifndef SPARRING_HKV_TABLE_SCORE_RULE_H_
#define SPARRING_HKV_TABLE_SCORE_RULE_H_

#include <cstdint>

#include "inline.h"

namespace sparring::hkv {

enum class PolicyKind { kNone, kLru, kLfu, kEpochLru, kEpochLfu, kCustom };

struct ScoreRule {
  static constexpr uint64_t kMost32 = 0xffffffffu;

  PolicyKind kind;
  uint64_t call = 0;  // number of the call
  uint32_t epoch = 0;
  bool is_restoring = false;

  // The score of a new row. `given` is NULL if the call contains no scores.
  SPARRING_HKV_INLINE uint64_t initial(const uint64_t* given) const {
    if (is_restoring && given != nullptr) return kind == PolicyKind::kNone ? 0 : *given;
    switch (kind) {
      case PolicyKind::kNone:
        return 0;
      case PolicyKind::kLru:
        return call;
      case PolicyKind::kLfu:
        return given ? *given : 1;
      case PolicyKind::kEpochLru:
        return high() | smaller(call, kMost32);
      case PolicyKind::kEpochLfu:
        return high() | smaller(given ? *given : 1, kMost32);
      case PolicyKind::kCustom:
        return given ? *given : 0;
    }
    return 0;
  }

  // The score of a row with score `score` after it was written or touched.
  SPARRING_HKV_INLINE uint64_t updated(uint64_t score, const uint64_t* given) const {
    if (is_restoring && given != nullptr) return initial(given);
    switch (kind) {
      case PolicyKind::kLfu:
        return add_up_to(~uint64_t{0}, score, given ? *given : 1);
      case PolicyKind::kEpochLfu:
        return high() | add_up_to(kMost32, score & kMost32, given ? *given : 1);
      case PolicyKind::kCustom:
        return given ? *given : score;
      default:
        return initial(given);
    }
  }

 private:
  SPARRING_HKV_INLINE uint64_t high() const { return uint64_t{epoch} << 32; }
  SPARRING_HKV_INLINE static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
  SPARRING_HKV_INLINE static uint64_t add_up_to(uint64_t most, uint64_t a, uint64_t b) {
    return a > most - smaller(b, most) ? most : a + b;
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_SCORE_RULE_H_
