#include "server/quotas.h"

#include <string>

#include "check.h"
#include "wire/status_error.h"

using namespace sparring::serve;

namespace {

using Seconds = std::chrono::duration<double>;

Quotas::Clock::time_point at(double seconds) {
  return Quotas::Clock::time_point(std::chrono::duration_cast<Quotas::Clock::duration>(Seconds(seconds)));
}

std::string refusal(Quotas& quotas, const std::string& client, double seconds) {
  try {
    quotas.admit(client, at(seconds));
    return "";
  } catch (const StatusError& error) {
    CHECK(error.code == StatusCode::RESOURCE_EXHAUSTED && error.reason == "quota");
    return error.what();
  }
}

void calls_beyond_the_rate_are_rejected() {
  Quotas quotas(2, 0);
  CHECK(refusal(quotas, "ads", 0).empty() && refusal(quotas, "ads", 0).empty());
  CHECK(refusal(quotas, "ads", 0).find("client ads has used its quota of 2 calls per second; retry after") == 0);
  CHECK(refusal(quotas, "search", 0).empty());  // each client has its own quota
  CHECK(refusal(quotas, "ads", 0.25).empty());
  CHECK(!refusal(quotas, "ads", 0.25).empty());
  // A bucket contains at most one second.
  CHECK(refusal(quotas, "ads", 100).empty() && refusal(quotas, "ads", 100).empty());
  CHECK(!refusal(quotas, "ads", 100).empty());
  const auto uses = quotas.uses();
  CHECK(uses.size() == 2 && uses[0].client == "ads" && uses[0].admitted == 5 && uses[0].rejected == 3);
}

void a_call_with_many_ids_delays_the_next_one() {
  Quotas quotas(0, 100);
  {
    const Quotas::Charging charging(&quotas.admit("ads", at(0)));
    Quotas::charge(400);
  }
  Quotas::charge(7);  // belongs to no client
  CHECK(refusal(quotas, "ads", 2).find("100 ids per second; retry after 1 s, send fewer ids") != std::string::npos);
  CHECK(refusal(quotas, "ads", 3.01).empty());
  CHECK(quotas.uses()[0].ids == 400);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"calls beyond the rate are rejected", calls_beyond_the_rate_are_rejected},
      {"a call with many ids delays the next one", a_call_with_many_ids_delays_the_next_one},
  });
}
