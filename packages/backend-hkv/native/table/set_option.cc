#include "set_option.h"

#include <charconv>
#include <cstring>
#include <string>

#include "sparring/storage_border.h"

namespace sparring::hkv {
namespace {

using border::StatusError;

uint64_t whole_number(const char* name, const char* value) {
  uint64_t number = 0;
  const char* end = value + std::strlen(value);
  const auto [stop, error] = std::from_chars(value, end, number);
  if (error != std::errc() || stop != end) {
    throw StatusError(SPARRING_INVALID_ARGUMENT, std::string(name) +
                                                     " must be a whole number; found '" + value +
                                                     "'");
  }
  return number;
}

}  // namespace

void set_policy_option(Policy& policy, const char* name, const char* value) {
  const std::string option(name);
  if (option == "scores") {
    const std::string whose(value);
    if (whose != "given" && whose != "policy") {
      throw StatusError(SPARRING_INVALID_ARGUMENT,
                        "scores must be 'given' or 'policy'; found '" + whose + "'");
    }
    policy.set_restoring(whose == "given");
  } else if (option == "calls") {
    policy.count_calls_up_to(whole_number(name, value));
  } else if (option == "epoch") {
    policy.set_epoch(whole_number(name, value));
  } else {
    throw StatusError(SPARRING_INVALID_ARGUMENT,
                      "option '" + option + "' is unknown; choose epoch, scores or calls");
  }
}

}  // namespace sparring::hkv
