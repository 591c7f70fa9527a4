// Streams with one thread each, which executes work asynchronously, like a GPU.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "sparring/stream_abi.h"

namespace sparring::testing {

class FakeStream {
 public:
  FakeStream() : thread_([this] { work(); }) {}
  // Executes the enqueued work, then ends.
  ~FakeStream() {
    put({});
    thread_.join();
  }

  void put(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !jobs_.empty(); });
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      if (!job) return;
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;
};

// A device with such streams, which can fail in the ways a GPU can.
class FakeDevice {
 public:
  FakeDevice() {
    streams_.version = {SPARRING_STREAMS_ABI_MAJOR, SPARRING_STREAMS_ABI_MINOR};
    streams_.struct_bytes = sizeof streams_;
    streams_.device = "fake:0";
    streams_.self = this;
    streams_.make_stream = [](void*, SparringStreamCall* call) -> SparringStatus {
      call->stream = new FakeStream;
      return SPARRING_OK;
    };
    streams_.free_stream = [](void*, SparringStreamCall* call) -> SparringStatus {
      delete static_cast<FakeStream*>(call->stream);
      return SPARRING_OK;
    };
    streams_.make_event = with([](FakeDevice& self, SparringStreamCall& call) {
      const std::lock_guard lock(self.mutex_);
      call.event = &self.events_.emplace_back(false);
      ++self.num_events;
    });
    streams_.free_event = [](void* self, SparringStreamCall*) -> SparringStatus {
      // Its memory is kept, because work on a stream may still use it.
      --static_cast<FakeDevice*>(self)->num_events;
      return SPARRING_OK;
    };
    streams_.record_event = with([](FakeDevice&, SparringStreamCall& call) {
      auto* event = static_cast<std::atomic<bool>*>(call.event);
      stream_of(call).put([event] { *event = true; });
    });
    streams_.order_after = with([](FakeDevice&, SparringStreamCall& call) {
      auto* event = static_cast<std::atomic<bool>*>(call.event);
      stream_of(call).put([event] {
        while (!*event) std::this_thread::yield();
      });
    });
    streams_.query_event = with([](FakeDevice& self, SparringStreamCall& call) {
      while (self.hangs_when_asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      call.is_done = *static_cast<std::atomic<bool>*>(call.event);
    });
    streams_.call_on_host = with([](FakeDevice& self, SparringStreamCall& call) {
      if (self.swallows_host_calls) return;
      stream_of(call).put([function = call.function, argument = call.argument] {
        is_device_thread = true;
        function(argument);
      });
    });
    streams_.allocate_pinned = with([](FakeDevice&, SparringStreamCall& call) {
      call.to = std::malloc(call.num_bytes);
    });
    streams_.free_pinned = [](void*, SparringStreamCall* call) -> SparringStatus {
      std::free(call->to);
      return SPARRING_OK;
    };
    streams_.copy = with([](FakeDevice&, SparringStreamCall& call) {
      stream_of(call).put([to = call.to, from = call.from, num_bytes = call.num_bytes] {
        std::memcpy(to, from, num_bytes);
      });
    });
  }

  const SparringStreams& streams() const { return streams_; }

  std::atomic<bool> is_lost{false};
  std::atomic<bool> swallows_host_calls{false};
  std::atomic<bool> hangs_when_asked{false};
  std::atomic<int> num_events{0};
  static inline thread_local bool is_device_thread = false;

 private:
  static FakeStream& stream_of(SparringStreamCall& call) {
    return *static_cast<FakeStream*>(call.stream);
  }

  // A function that fails on a lost device. `body` has no captures, so it converts to a pointer.
  template <typename Body>
  static SparringStreamFunction with(Body) {
    return [](void* self, SparringStreamCall* call) -> SparringStatus {
      auto& device = *static_cast<FakeDevice*>(self);
      if (device.is_lost) {
        call->error.message = "the device was lost";
        return SPARRING_DEVICE_LOST;
      }
      Body{}(device, *call);
      return SPARRING_OK;
    };
  }

  SparringStreams streams_{};
  std::mutex mutex_;
  std::deque<std::atomic<bool>> events_;
};

}  // namespace sparring::testing
