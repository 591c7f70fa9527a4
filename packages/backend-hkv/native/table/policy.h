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
// Calls are numbered from 1, upserts and touches alike; in epoch_lru anew in
// each epoch. No clock is read, so equal calls give equal scores.
//
// While scores are restored, all policies take the scores that a call brings as they
// are, and calls are not counted: rows of a snapshot get back what they had.
#ifndef SPARRING_HKV_TABLE_POLICY_H_
#define SPARRING_HKV_TABLE_POLICY_H_

#include <cstdint>
#include <string>

namespace sparring::hkv {

enum class PolicyKind { kNone, kLru, kLfu, kEpochLru, kEpochLfu, kCustom };

class Policy {
 public:
  explicit Policy(PolicyKind kind) : kind_(kind) {}

  // Throws StatusError for an unknown name, naming those that exist.
  static PolicyKind kind_of(const std::string& name);
  const char* name() const;

  bool keeps_scores() const { return kind_ != PolicyKind::kNone; }
  // Whether a call may bring scores: as they are, or as increments.
  bool takes_scores() const {
    return kind_ == PolicyKind::kCustom || kind_ == PolicyKind::kLfu ||
           kind_ == PolicyKind::kEpochLfu || is_restoring_;
  }
  bool has_epochs() const {
    return kind_ == PolicyKind::kEpochLru || kind_ == PolicyKind::kEpochLfu;
  }

  // Before the scores of a call are asked for.
  void begin_call() { call_ += is_restoring_ ? 0 : 1; }
  // `given` NULL: the call brought no scores.
  uint64_t initial(const uint64_t* given) const;
  uint64_t updated(uint64_t score, const uint64_t* given) const;

  uint32_t epoch() const { return epoch_; }
  // Throws StatusError if it is before the present one, or there are none.
  void set_epoch(uint64_t epoch);

  void set_restoring(bool is_restoring) { is_restoring_ = is_restoring; }
  // The next call has at least the number after this one.
  void count_calls_up_to(uint64_t number) { call_ = number > call_ ? number : call_; }

 private:
  PolicyKind kind_;
  uint64_t call_ = 0;
  uint32_t epoch_ = 0;
  bool is_restoring_ = false;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_POLICY_H_
