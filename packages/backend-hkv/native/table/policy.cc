#include "policy.h"

#include <utility>

#include "sparring/storage_border.h"

namespace sparring::hkv {

namespace {

using border::StatusError;

constexpr std::pair<const char*, PolicyKind> kNames[] = {
    {"none", PolicyKind::kNone},           {"lru", PolicyKind::kLru},
    {"lfu", PolicyKind::kLfu},             {"epoch_lru", PolicyKind::kEpochLru},
    {"epoch_lfu", PolicyKind::kEpochLfu},  {"custom", PolicyKind::kCustom},
};

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
    if (kind == rule_.kind) return name;
  }
  return "";
}

void Policy::set_epoch(uint64_t epoch) {
  if (!has_epochs()) {
    throw StatusError(SPARRING_UNSUPPORTED, std::string("epoch: the policy is ") + name() +
                                                ", which has no epochs; use epoch_lru or epoch_lfu");
  }
  if (epoch > ScoreRule::kMost32 || epoch < rule_.epoch) {
    throw StatusError(SPARRING_INVALID_ARGUMENT,
                      "epoch must be from the current one, " + std::to_string(rule_.epoch) +
                          ", to 4294967295; found " + std::to_string(epoch));
  }
  if (epoch != rule_.epoch) rule_.call = 0;
  rule_.epoch = static_cast<uint32_t>(epoch);
}

}  // namespace sparring::hkv
