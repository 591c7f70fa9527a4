// Resets the counters of a call if the call fails.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_CALL_COUNTERS_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_CALL_COUNTERS_H_

#include <cstddef>

#include "device_state.h"

namespace sparring::hkv {

class DeviceTable::State::CallCounters {
 public:
  CallCounters(State& state, device::Stream stream) : state_(state), stream_(stream) {}
  ~CallCounters() {
    if (is_settled_) return;
    constexpr size_t begin = offsetof(DeviceCounters, num_missing);
    try {
      state_.device.fill(reinterpret_cast<char*>(state_.counters) + begin, 0,
                         sizeof(DeviceCounters) - begin, stream_);
    } catch (const device::DeviceError&) {
      // Otherwise the next call would add these counts.
      state_.begin_change();
    }
  }
  CallCounters(const CallCounters&) = delete;
  CallCounters& operator=(const CallCounters&) = delete;

  // Call it when the settling kernel is enqueued.
  void settled() { is_settled_ = true; }

 private:
  State& state_;
  device::Stream stream_;
  bool is_settled_ = false;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_CALL_COUNTERS_H_
