// How scores come about. A larger score is kept longer; where scores are equal
// the smaller key leaves first.
//
//   policy      score of a new row            after an upsert or a touch
//   none        not kept, reads as 0          -
//   lru         number of the call            number of the call
//   lfu         given, or 1                   + given, or + 1; stops at 2^64 - 1
//   epoch_lru   epoch : number of the call    the same; 32 bits each
//   epoch_lfu   epoch : given, or 1           epoch : low + given, or + 1
//   custom      given, or 0                   given; unchanged if none is given
//
// Calls are numbered from 1, upserts and touches alike; in epoch_lru from 1
// again in each epoch. No clock is read, so equal calls give equal scores.
//
// While scores are restored, all policies take the scores that a call brings as they
// are, and calls are not counted: rows of a snapshot get back what they had.
#ifndef SPARRING_HKV_TABLE_POLICY_H_
#define SPARRING_HKV_TABLE_POLICY_H_

#include <cstdint>
#include <string>

#include "score_rule.h"

namespace sparring::hkv {

class Policy {
 public:
  explicit Policy(PolicyKind kind) : rule_{.kind = kind} {}

  // Throws StatusError for an unknown name, naming those that exist.
  static PolicyKind kind_of(const std::string& name);
  const char* name() const;

  bool keeps_scores() const { return rule_.kind != PolicyKind::kNone; }
  // Whether a call may bring scores: as they are, or as increments.
  bool takes_scores() const {
    return rule_.kind == PolicyKind::kCustom || rule_.kind == PolicyKind::kLfu ||
           rule_.kind == PolicyKind::kEpochLfu || rule_.is_restoring;
  }
  bool has_epochs() const {
    return rule_.kind == PolicyKind::kEpochLru || rule_.kind == PolicyKind::kEpochLfu;
  }

  // Before the scores of a call are asked for.
  void begin_call() { rule_.call += rule_.is_restoring ? 0 : 1; }
  // Of the call that began last.
  const ScoreRule& rule() const { return rule_; }
  uint64_t initial(const uint64_t* given) const { return rule_.initial(given); }
  uint64_t updated(uint64_t score, const uint64_t* given) const {
    return rule_.updated(score, given);
  }

  uint32_t epoch() const { return rule_.epoch; }
  // Throws StatusError if it is before the present one, or there are none.
  void set_epoch(uint64_t epoch);

  void set_restoring(bool is_restoring) { rule_.is_restoring = is_restoring; }
  // The next call has at least the number after this one.
  void count_calls_up_to(uint64_t number) {
    rule_.call = number > rule_.call ? number : rule_.call;
  }

 private:
  ScoreRule rule_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_POLICY_H_
