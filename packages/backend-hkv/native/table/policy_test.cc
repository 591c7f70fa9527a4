#include "policy.h"

#include "check.h"
#include "sparring/storage_border.h"

using namespace sparring::hkv;

namespace {

constexpr uint64_t kMost = ~uint64_t{0};
const uint64_t kFive = 5;

void lru_counts_calls() {
  Policy policy(PolicyKind::kLru);
  policy.begin_call();
  CHECK(policy.initial(nullptr) == 1 && policy.updated(99, nullptr) == 1);
  policy.begin_call();
  CHECK(policy.initial(nullptr) == 2);
}

void lfu_counts_up_and_stops_at_the_maximum() {
  Policy policy(PolicyKind::kLfu);
  CHECK(policy.initial(nullptr) == 1 && policy.initial(&kFive) == 5);
  CHECK(policy.updated(10, nullptr) == 11 && policy.updated(10, &kFive) == 15);
  CHECK(policy.updated(kMost - 5, &kFive) == kMost && policy.updated(kMost - 4, &kFive) == kMost);
  CHECK(policy.updated(kMost, &kMost) == kMost);
}

void restoring_stores_scores_unchanged() {
  for (const PolicyKind kind : {PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kEpochLru,
                                PolicyKind::kEpochLfu, PolicyKind::kCustom}) {
    Policy policy(kind);
    policy.set_restoring(true);
    policy.begin_call();
    CHECK(policy.takes_scores());
    CHECK(policy.initial(&kFive) == 5 && policy.updated(10, &kFive) == 5);
  }
  Policy lru(PolicyKind::kLru);
  lru.set_restoring(true);
  lru.begin_call();
  lru.count_calls_up_to(7);
  lru.set_restoring(false);
  lru.begin_call();
  CHECK(lru.initial(nullptr) == 8 && !lru.takes_scores());
}

void epochs_take_precedence_over_counts() {
  Policy lru(PolicyKind::kEpochLru);
  lru.begin_call();
  lru.begin_call();
  const uint64_t old = lru.initial(nullptr);
  CHECK(old == 2);
  lru.set_epoch(3);
  lru.begin_call();
  CHECK(lru.initial(nullptr) == (uint64_t{3} << 32 | 1) && lru.initial(nullptr) > old);

  Policy lfu(PolicyKind::kEpochLfu);
  lfu.set_epoch(4294967295u);
  CHECK(lfu.updated(7, &kFive) == (uint64_t{4294967295u} << 32 | 12));
  CHECK(lfu.updated(0xfffffffeu, &kFive) == kMost);
  CHECK(lfu.initial(&kMost) == kMost);
}

void custom_stores_the_given_scores() {
  Policy policy(PolicyKind::kCustom);
  CHECK(policy.initial(nullptr) == 0 && policy.initial(&kFive) == 5);
  CHECK(policy.updated(9, nullptr) == 9 && policy.updated(9, &kFive) == 5);
}

void wrong_names_and_epochs_are_rejected() {
  const auto refuses = [](const auto& body) {
    try {
      body();
    } catch (const sparring::border::StatusError&) {
      return true;
    }
    return false;
  };
  CHECK(refuses([] { Policy::kind_of("fifo"); }));
  CHECK(Policy::kind_of("epoch_lfu") == PolicyKind::kEpochLfu);
  CHECK(refuses([] { Policy(PolicyKind::kLru).set_epoch(1); }));
  Policy policy(PolicyKind::kEpochLru);
  policy.set_epoch(7);
  CHECK(refuses([&] { policy.set_epoch(6); }) && refuses([&] { policy.set_epoch(4294967296u); }));
  CHECK(policy.epoch() == 7);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"lru counts calls", lru_counts_calls},
      {"lfu counts up and stops at the maximum", lfu_counts_up_and_stops_at_the_maximum},
      {"epochs take precedence over counts", epochs_take_precedence_over_counts},
      {"custom stores the given scores", custom_stores_the_given_scores},
      {"restoring stores scores unchanged", restoring_stores_scores_unchanged},
      {"wrong names and epochs are rejected", wrong_names_and_epochs_are_rejected},
  });
}
