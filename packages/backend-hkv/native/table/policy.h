// The scores of each policy. Rows with larger scores are kept longer; if scores
// are equal, the smaller key is evicted first.
//
//   policy      score of a new row            after an upsert or a touch
//   none        not stored, reads as 0        -
//   lru         number of the call            number of the call
//   lfu         given, or 1                   + given, or + 1; stops at 2^64 - 1
//   epoch_lru   epoch : number of the call    the same; 32 bits each
//   epoch_lfu   epoch : given, or 1           epoch : low + given, or + 1
//   custom      given, or 0                   given; unchanged if none is given
//
// Calls, upserts as well as touches, are numbered from 1; in epoch_lru the
// numbers restart in each epoch. No clock is used, so equal calls give equal
// scores.
//
// While a snapshot is loaded, all policies store the scores of a call unchanged
// and do not count calls, so rows get the scores that they had.
#ifndef SPARRING_HKV_TABLE_POLICY_H_
#define SPARRING_HKV_TABLE_POLICY_H_

#include <cstdint>
#include <string>

#include "score_rule.h"

namespace sparring::hkv {

class Policy {
 public:
  explicit Policy(PolicyKind kind) : rule_{.kind = kind} {}

  // Throws StatusError for an unknown name; the message lists the valid ones.
  static PolicyKind kind_of(const std::string& name);
  const char* name() const;

  bool keeps_scores() const { return rule_.kind != PolicyKind::kNone; }
  // Whether a call may contain scores: absolute, or increments.
  bool takes_scores() const {
    return rule_.kind == PolicyKind::kCustom || rule_.kind == PolicyKind::kLfu ||
           rule_.kind == PolicyKind::kEpochLfu || rule_.is_restoring;
  }
  bool has_epochs() const {
    return rule_.kind == PolicyKind::kEpochLru || rule_.kind == PolicyKind::kEpochLfu;
  }

  // Must be called before the scores of a call are computed.
  void begin_call() { rule_.call += rule_.is_restoring ? 0 : 1; }
  // The rule of the current call.
  const ScoreRule& rule() const { return rule_; }
  uint64_t initial(const uint64_t* given) const { return rule_.initial(given); }
  uint64_t updated(uint64_t score, const uint64_t* given) const {
    return rule_.updated(score, given);
  }

  uint32_t epoch() const { return rule_.epoch; }
  // Throws StatusError if it is before the current epoch, or if the policy has no epochs.
  void set_epoch(uint64_t epoch);

  void set_restoring(bool is_restoring) { rule_.is_restoring = is_restoring; }
  // Makes the number of the next call larger than this one.
  void count_calls_up_to(uint64_t number) {
    rule_.call = number > rule_.call ? number : rule_.call;
  }

 private:
  ScoreRule rule_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_POLICY_H_
