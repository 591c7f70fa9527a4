#include "policy.h"

#include <algorithm>
#include <utility>

#include "sparring/storage_border.h"

namespace sparring::hkv {

namespace {

using border::StatusError;

constexpr uint64_t kMost = ~uint64_t{0};
constexpr uint64_t kMost32 = 0xffffffffu;

constexpr std::pair<const char*, PolicyKind> kNames[] = {
    {"none", PolicyKind::kNone},           {"lru", PolicyKind::kLru},
    {"lfu", PolicyKind::kLfu},             {"epoch_lru", PolicyKind::kEpochLru},
    {"epoch_lfu", PolicyKind::kEpochLfu},  {"custom", PolicyKind::kCustom},
};

uint64_t add_up_to(uint64_t most, uint64_t a, uint64_t b) { return a > most - std::min(b, most) ? most : a + b; }

}  // namespace

PolicyKind Policy::kind_of(const std::string& name) {
  std::string known;
  for (const auto& [known_name, kind] : kNames) {
    if (name == known_name) return kind;
    known += (known.empty() ? "" : ", ") + std::string(known_name);
  }
  throw StatusError(SPARRING_INVALID_ARGUMENT,
                    "policy must be one of " + known + "; found '" + name + "'");
}

const char* Policy::name() const {
  for (const auto& [name, kind] : kNames) {
    if (kind == kind_) return name;
  }
  return "";
}

uint64_t Policy::initial(const uint64_t* given) const {
  if (is_restoring_ && given != nullptr) return kind_ == PolicyKind::kNone ? 0 : *given;
  const uint64_t high = uint64_t{epoch_} << 32;
  switch (kind_) {
    case PolicyKind::kNone:
      return 0;
    case PolicyKind::kLru:
      return call_;
    case PolicyKind::kLfu:
      return given ? *given : 1;
    case PolicyKind::kEpochLru:
      return high | std::min(call_, kMost32);
    case PolicyKind::kEpochLfu:
      return high | std::min(given ? *given : 1, kMost32);
    case PolicyKind::kCustom:
      return given ? *given : 0;
  }
  return 0;
}

uint64_t Policy::updated(uint64_t score, const uint64_t* given) const {
  if (is_restoring_ && given != nullptr) return initial(given);
  switch (kind_) {
    case PolicyKind::kLfu:
      return add_up_to(kMost, score, given ? *given : 1);
    case PolicyKind::kEpochLfu:
      return uint64_t{epoch_} << 32 |
             add_up_to(kMost32, score & kMost32, given ? *given : 1);
    case PolicyKind::kCustom:
      return given ? *given : score;
    default:
      return initial(given);
  }
}

void Policy::set_epoch(uint64_t epoch) {
  if (!has_epochs()) {
    throw StatusError(SPARRING_UNSUPPORTED, std::string("epoch: the policy is ") + name() +
                                                ", which has none; use epoch_lru or epoch_lfu");
  }
  if (epoch > kMost32 || epoch < epoch_) {
    throw StatusError(SPARRING_INVALID_ARGUMENT,
                      "epoch must be from the present one, " + std::to_string(epoch_) +
                          ", to 4294967295; found " + std::to_string(epoch));
  }
  if (epoch != epoch_) call_ = 0;
  epoch_ = static_cast<uint32_t>(epoch);
}

}  // namespace sparring::hkv
