#include "execution/stream_scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "execution/pool.h"

namespace sparring::execution {

using std::chrono::steady_clock;

// The waits in progress, by number.
class StreamWaits {
 public:
  // Never destroyed, because host calls may run while the process exits.
  static StreamWaits& process() {
    static StreamWaits* const waits = new StreamWaits;
    return *waits;
  }

  // Throws std::bad_alloc, std::system_error.
  uint64_t add(StreamWait& wait) {
    const std::lock_guard lock(mutex_);
    start_threads();
    const uint64_t number = next_number_++;
    waits_[number] = {&wait, steady_clock::now() + wait.deadline_, false};
    changed_.notify_all();
    return number;
  }

  // Returns false if another thread has ended it. A caller that gets it must end it.
  bool take(uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = waits_.find(number);
    if (found == waits_.end() || found->second.has_ended) return false;
    waits_.erase(found);
    return true;
  }

  // The host call. Its thread is the driver's and lives as long as the process: the timekeeper
  // enqueues, so that oneTBB does not stay with it.
  static void arrive(void* number) { process().end(reinterpret_cast<uintptr_t>(number), {}); }

  int64_t size() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(waits_.size());
  }

 private:
  struct Entry {
    StreamWait* wait;
    steady_clock::time_point limit;
    bool has_ended;  // but is not enqueued yet
  };

  static constexpr std::chrono::milliseconds ask_period{20};
  static constexpr std::chrono::milliseconds retry_period{5};

  StreamWaits() {
    // Before our handlers, because its lock is acquired under ours, and handlers before a fork run
    // in reverse order.
    Pool::process();
    pthread_atfork([] { process().before_fork(); }, [] { process().after_fork_in_parent(); },
                   [] { process().after_fork_in_child(); });
  }

  // The timekeeper passes a wait to the pool, if it has not ended.
  void end(uint64_t number, std::exception_ptr failure) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = waits_.find(number);
    if (found == waits_.end() || found->second.has_ended) return;
    found->second.wait->failure_ = std::move(failure);
    found->second.has_ended = true;
    changed_.notify_all();
  }

  // REQUIRES: mutex_ is held.
  void start_threads() {
    if (!is_asking_) {
      std::thread([this] { ask(); }).detach();
      is_asking_ = true;
    }
    // Not during a fork, which starts it again afterwards.
    if (!timekeeper_.joinable() && num_forks_ == 0)
      timekeeper_ = std::thread([this, epoch = epoch_] { keep_time(epoch); });
  }

  // Until `epoch` is over. The only thread of ours that uses the pool: oneTBB stays with a thread
  // until it ends, and a fork finds the pool idle only if no thread uses it.
  void keep_time(uint64_t epoch) {
    std::unique_lock lock(mutex_);
    while (epoch == epoch_) {
      const auto now = steady_clock::now();
      auto next = now + std::chrono::hours(1);
      for (auto place = waits_.begin(); place != waits_.end();) {
        const auto each = place++;
        Entry& entry = each->second;
        if (!entry.has_ended && now >= entry.limit) {
          entry.wait->is_late_ = true;
          entry.has_ended = true;
        }
        if (!entry.has_ended) {
          next = std::min(next, entry.limit);
        } else if (enqueue(*entry.wait)) {
          waits_.erase(each);
        } else {
          next = std::min(next, now + retry_period);
        }
      }
      changed_.wait_until(lock, next);
    }
  }

  static bool enqueue(StreamWait& wait) noexcept {
    try {
      Pool::process().enqueue(wait);
      return true;
    } catch (...) {
      return false;  // no memory, or no thread, at this moment
    }
  }

  // Queries events for errors, which host calls do not report.
  [[noreturn]] void ask() {
    for (;;) {
      std::vector<std::pair<uint64_t, std::shared_ptr<StreamEvent>>> asked;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !waits_.empty(); });
        changed_.wait_for(lock, ask_period, [] { return false; });
        for (const auto& [number, entry] : waits_) {
          if (!entry.has_ended) asked.emplace_back(number, entry.wait->event_);
        }
      }
      for (const auto& [number, event] : asked) {
        std::exception_ptr error;
        try {
          (void)event->is_reached();  // the host call reports this itself, and earlier
        } catch (...) {
          error = std::current_exception();
        }
        // Moved, because the waiter reads and frees the error while this thread continues.
        if (error) end(number, std::move(error));
      }
    }
  }

  void before_fork() {
    std::thread ending;
    {
      const std::lock_guard lock(mutex_);
      ++num_forks_;
      ++epoch_;
      ending.swap(timekeeper_);
      changed_.notify_all();
    }
    if (ending.joinable()) ending.join();
    mutex_.lock();
  }

  void after_fork_in_parent() {
    --num_forks_;
    if (!waits_.empty()) start_threads();
    mutex_.unlock();
  }

  void after_fork_in_child() {
    // Neither devices nor these threads exist in a forked child.
    waits_.clear();
    is_asking_ = false;
    num_forks_ = 0;
    new (&changed_) std::condition_variable;
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Entry> waits_;
  uint64_t next_number_ = 1;
  bool is_asking_ = false;   // whether a thread queries events
  std::thread timekeeper_;   // none before the first wait, and during a fork
  uint64_t epoch_ = 0;       // of the timekeeper: another one ends it
  int num_forks_ = 0;        // in progress
};

void StreamWait::begin() noexcept {
  // Copies, because after it is added, the deadline or an error may end it and destroy this object.
  const SparringStreams& streams = streams_;
  SparringStreamCall call{};
  call.struct_bytes = sizeof call;
  call.stream = stream_;
  call.function = StreamWaits::arrive;
  uint64_t number = 0;
  std::exception_ptr error;
  try {
    event_ = std::make_shared<StreamEvent>(streams_, stream_);
    number = StreamWaits::process().add(*this);
    call.argument = reinterpret_cast<void*>(number);
    return call_streams(streams, streams.call_on_host, "enqueueing a host call on a stream", call);
  } catch (...) {
    error = std::current_exception();
  }
  // After it was added, another thread may have ended it.
  if (number != 0 && !StreamWaits::process().take(number)) return;
  on_failed(std::move(error));
}

void StreamWait::run() noexcept {
  // Freed last, because this may take long if the device is lost.
  const std::shared_ptr<StreamEvent> event = std::move(event_);
  if (is_late_) {
    const double seconds = std::chrono::duration<double>(deadline_).count();
    on_failed(std::make_exception_ptr(StreamDeadlineError(
        std::string(streams_.device) + ": a stream did not reach the awaited position within " +
        std::to_string(seconds) + " s; allow more time, or find out what it waits for")));
  } else if (failure_ != nullptr) {
    on_failed(std::move(failure_));
  } else {
    on_reached();
  }
}

int64_t num_stream_waits() { return StreamWaits::process().size(); }

}  // namespace sparring::execution
