#include "server/quotas.h"

#include <algorithm>
#include <utility>

#include "wire/status_error.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

constexpr char kCalls[] = "calls";
constexpr char kIds[] = "ids";

// Client whose call this thread answers.
thread_local Quotas::Client* charged = nullptr;

}  // namespace

Quotas::Charging::Charging(Client* client) { charged = client; }
Quotas::Charging::~Charging() { charged = nullptr; }

void Quotas::charge(int64_t num_ids) {
  if (charged != nullptr) charged->charge(num_ids);
}

Quotas::Client& Quotas::admit(const std::string& name, Clock::time_point now) {
  Client* client = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    client = &clients_.try_emplace(name, name, calls_per_second_, ids_per_second_, now).first->second;
  }
  client->admit(now);
  return *client;
}

std::vector<ClientUse> Quotas::uses() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ClientUse> found;
  for (const auto& [name, client] : clients_) found.push_back(client.use());
  return found;
}

Quotas::Client::Client(std::string name, double calls_per_second, double ids_per_second,
                       Clock::time_point now)
    : filled_(now) {
  use_.client = std::move(name);
  for (const auto& [rate, unit] : {std::pair{calls_per_second, kCalls}, std::pair{ids_per_second, kIds}}) {
    if (rate > 0) buckets_.push_back({rate, unit, rate});
  }
}

void Quotas::Client::admit(Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - filled_).count());
  filled_ = std::max(filled_, now);
  const Bucket* empty = nullptr;
  for (Bucket& each : buckets_) {
    each.level = std::min(each.rate, each.level + seconds * each.rate);
    const bool is_first = empty == nullptr || each.level / each.rate < empty->level / empty->rate;
    if (each.level <= 0 && is_first) empty = &each;
  }
  if (empty != nullptr) {
    ++use_.rejected;
    const double wait = std::max(-empty->level / empty->rate, 0.001);
    throw StatusError(StatusCode::RESOURCE_EXHAUSTED,
                      "client " + use_.client + " has used its quota of " + general(empty->rate) + " " +
                          empty->unit + " per second; retry after " + general(wait, 3) +
                          " s, send fewer " + empty->unit + ", or increase server.quota." + empty->unit +
                          "_per_second of this server",
                      "quota");
  }
  ++use_.admitted;
  for (Bucket& each : buckets_) {
    if (each.unit == kCalls) each.level -= 1;
  }
}

void Quotas::Client::charge(int64_t num_ids) {
  const std::lock_guard<std::mutex> lock(mutex_);
  use_.ids += num_ids;
  for (Bucket& each : buckets_) {
    if (each.unit == kIds) each.level -= static_cast<double>(num_ids);
  }
}

ClientUse Quotas::Client::use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

}  // namespace sparring::serve
