// Threads for calls that take long, so that they do not occupy the threads of gRPC.
#ifndef SPARRING_SERVE_SERVER_WORK_THREADS_H_
#define SPARRING_SERVE_SERVER_WORK_THREADS_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace sparring::serve {

class WorkThreads {
 public:
  explicit WorkThreads(int num_threads) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;
  ~WorkThreads() { close(); }

  // Runs `work`, which must not throw, on one of the threads.
  void submit(std::function<void()> work) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(work));
    }
    has_work_.notify_one();
  }

  // Returns the time since the longest work in progress began; 0 if there is none.
  double oldest_seconds() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (begins_.empty()) return 0;
    return std::chrono::duration<double>(Clock::now() - *begins_.begin()).count();
  }

  // Completes submitted work and ends the threads. Further calls do nothing.
  void close() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
    }
    has_work_.notify_all();
    for (std::thread& each : threads_) each.join();
    threads_.clear();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      has_work_.wait(lock, [this] { return is_closed_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      const auto place = begins_.insert(Clock::now());
      lock.unlock();
      work();
      lock.lock();
      begins_.erase(place);
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<std::function<void()>> queue_;
  std::multiset<Clock::time_point> begins_;  // of work in progress
  bool is_closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_WORK_THREADS_H_
