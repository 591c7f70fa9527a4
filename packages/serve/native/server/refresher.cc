#include "server/refresher.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "server/log.h"
#include "wire/text.h"

namespace sparring::serve {

Refresher::Refresher(ServingTables& tables, Metrics& metrics, double poll_seconds)
    : tables_(tables), metrics_(metrics), poll_seconds_(poll_seconds), thread_([this] { run(); }) {}

Refresher::~Refresher() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }
  is_wanted_.notify_one();
  thread_.join();
}

void Refresher::hint(std::function<void(const RefreshResult&)> answer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    hints_.push_back(std::move(answer));
  }
  is_wanted_.notify_one();
}

void Refresher::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    const auto is_wanted = [this] { return is_closed_ || !hints_.empty(); };
    if (poll_seconds_ > 0) {
      is_wanted_.wait_for(lock, std::chrono::duration<double>(poll_seconds_), is_wanted);
    } else {
      is_wanted_.wait(lock, is_wanted);
    }
    std::function<void(const RefreshResult&)> answer;
    if (!hints_.empty()) {
      answer = std::move(hints_.front());
      hints_.pop_front();
    } else if (is_closed_) {
      return;
    }
    lock.unlock();
    const RefreshResult result = refresh();
    if (answer) answer(result);
    lock.lock();
  }
}

RefreshResult Refresher::refresh() {
  const auto begin = std::chrono::steady_clock::now();
  RefreshResult result;
  try {
    result.is_new = tables_.refresh();
  } catch (const PackedError& error) {
    result.refused = error.what();
    metrics_.refreshes.add("refused");
    // A rejected version is logged once.
    if (result.refused != last_refused_) {
      log(LogLevel::kWarning,
          "a newer version is rejected, and the old one is still served: " + result.refused);
    }
    last_refused_ = result.refused;
    return result;
  } catch (const std::exception& error) {
    // The served version is unaffected, and the next check may succeed.
    metrics_.refreshes.add("refused");
    log(LogLevel::kError, std::string("a check for a newer version failed: ") + error.what());
    result.refused = "an error in this server; check its log";
    return result;
  }
  last_refused_.clear();
  metrics_.refreshes.add(result.is_new ? "taken" : "unchanged");
  if (result.is_new) {
    last_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto served = tables_.served();
    const Version& newest = served->versions.front();
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3f", last_seconds_.load());
    log(LogLevel::kInfo, "step " + std::to_string(newest.step) + ", version " + newest.hash +
                             ", is now served; the switch took " + seconds + " s");
  }
  return result;
}

}  // namespace sparring::serve
