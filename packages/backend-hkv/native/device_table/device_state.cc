#include "device_state.h"

#include <limits>
#include <utility>

#include "sparring/storage_border.h"

namespace sparring::hkv {
namespace {

using border::StatusError;

// Calls use library algorithms, whose counts have 31 bits.
constexpr int64_t kMostKeys = std::numeric_limits<int32_t>::max();

}  // namespace

DeviceTable::State::State(device::Device& device_used, const DeviceTableOptions& asked)
    : device(device_used),
      options(asked),
      layout(make_device_layout(asked.table)),
      policy(asked.table.policy),
      own_stream(nullptr),
      // A pointer without ownership: the table does not own the device and does not outlive it.
      to_host(std::shared_ptr<device::Device>(std::shared_ptr<void>(), &device_used), 4096),
      counters(nullptr) {
  own_stream = device.make_stream();
  try {
    order = std::make_unique<DeviceOrder>(device);
    counters_memory = device::make_buffer<DeviceCounters>(device, 1, own_stream,
                                                          device::Lifetime::kLasting);
    counters = counters_memory.as<DeviceCounters>();
    device.fill(counters, 0, sizeof(DeviceCounters), own_stream);
    index = std::make_unique<DeviceIndex>(device, own_stream, layout, keeps_scores(),
                                          options.table.hash_seed);
    rows = std::make_unique<DeviceRows>(device, own_stream, options.table.row_bytes,
                                        layout.max_rows);
    // The slots of a table that evicts own their rows from the start.
    if (layout.evicts) rows->reserve(layout.max_rows, row_budget());
    order->end_write(own_stream);
  } catch (...) {
    rows.reset();
    index.reset();
    counters_memory = {};
    order.reset();
    device.free_stream(own_stream);
    throw;
  }
}

DeviceTable::State::~State() {
  try {
    // Other streams may still use memory that is freed on this one.
    order->begin_write(own_stream);
    device.wait(own_stream);  // pinned memory is freed at once, independently of streams
  } catch (const device::DeviceError&) {
    // On a failed device nothing can be used or leaked.
  }
  rows.reset();
  index.reset();
  counters_memory = {};
  order.reset();
  device.free_stream(own_stream);
}

void DeviceTable::State::run(const std::string& what, const std::function<void()>& body) {
  {
    const std::lock_guard<std::mutex> held(failure_mutex);
    if (!failure.empty()) throw StatusError(SPARRING_DEVICE_LOST, what + ": " + failure);
  }
  try {
    body();
  } catch (const device::OutOfDeviceMemory& error) {
    throw StatusError(SPARRING_DEVICE_MEMORY,
                      what + " on " + device.name() + ": " +
                          border::device_memory_text({error.asked_bytes, error.free_bytes}) + error.note +
                          "; the table is unchanged. Divide the call, free memory there, or set "
                          "device_memory_bytes, beyond which rows are stored in host memory");
  } catch (const device::DeviceLost& error) {
    const std::lock_guard<std::mutex> held(failure_mutex);
    failure = device.name() + " has failed (" + error.what() +
              "), and this table rejects all calls since then; restart the process, and load a "
              "snapshot";
    throw StatusError(SPARRING_DEVICE_LOST, what + ": " + failure);
  } catch (const device::StreamRefused& error) {
    throw StatusError(SPARRING_INVALID_ARGUMENT, what + " on " + device.name() + ": " +
                                                     error.what() + ". The table is unchanged");
  } catch (const device::DeviceError& error) {
    throw StatusError(SPARRING_DEVICE_FAILED,
                      what + ": " + device.name() + " rejected it (" + error.what() +
                          "); the table is unchanged and usable. Call again, or fix the cause");
  }
}

void DeviceTable::State::read(device::Stream stream, const std::string& what,
                              const std::function<void()>& body) {
  const std::shared_lock<ReaderWriterLock> held(lock);
  run(what, [&] {
    check_stream(stream);
    order->begin_read(stream);
    try {
      body();
    } catch (...) {
      end(stream, &DeviceOrder::end_read);
      throw;
    }
    end(stream, &DeviceOrder::end_read);
  });
}

void DeviceTable::State::write(device::Stream stream, const std::string& what,
                               const std::function<void()>& body) {
  const std::unique_lock<ReaderWriterLock> held(lock);
  run(what, [&] {
    check_stream(stream);
    order->begin_write(stream);
    end_change();
    try {
      body();
    } catch (const device::DeviceLost&) {
      throw;
    } catch (const device::DeviceError& error) {
      end(stream, &DeviceOrder::end_write);
      if (is_changing) throw device::DeviceLost(error.what() + std::string(", in the middle of a change"));
      throw;
    } catch (const device::OutOfDeviceMemory& error) {
      end(stream, &DeviceOrder::end_write);
      if (is_changing)
        throw device::DeviceLost(error.what() + error.note + std::string(", in the middle of a change"));
      throw;
    } catch (const StatusError& error) {
      end(stream, &DeviceOrder::end_write);
      // Another table of the same call was lost, and data passed to this one may be lost with it.
      if (error.status() == SPARRING_DEVICE_LOST && is_changing) throw device::DeviceLost(error.what());
      throw;
    } catch (...) {
      end(stream, &DeviceOrder::end_write);
      throw;
    }
    end(stream, &DeviceOrder::end_write);
  });
}

// Checked before work is enqueued: if the GPU rejected it later, it could not be ordered, and the
// table would be lost.
void DeviceTable::State::check_stream(device::Stream stream) const {
  if (stream == own_stream) return;
  device.check_stream(stream);
}

// Enqueued work must be ordered, even after a failure. If that fails, the table can no longer be
// used.
void DeviceTable::State::end(device::Stream stream, void (DeviceOrder::*end_work)(device::Stream)) {
  try {
    (order.get()->*end_work)(stream);
  } catch (const device::DeviceLost&) {
    throw;
  } catch (const device::DeviceError& error) {
    throw device::DeviceLost(error.what() + std::string(", so that work cannot be ordered"));
  }
}

DeviceCounters DeviceTable::State::read_counters(device::Stream stream) {
  DeviceCounters now;
  to_host.read({{&now, counters, sizeof(now)}}, stream);
  return now;
}

DeviceFreeLists DeviceTable::State::free_lists(const uint32_t* returned) const {
  return {rows->free_rows(), index->free_overflow(), rows->list_capacity(), returned};
}

void DeviceTable::State::settle(device::Stream stream, SettleCounters::Work work,
                                const uint32_t* returned) {
  device::launch(device, {1}, stream, SettleCounters{counters, free_lists(returned), work});
}

uint64_t DeviceTable::State::row_budget() const {
  if (options.device_memory_bytes == 0) return 0;
  const uint64_t other = index->memory_bytes();
  // At least 1 byte, which means none.
  return options.device_memory_bytes > other ? options.device_memory_bytes - other : 1;
}

void DeviceTable::State::check_count(int64_t count, const char* name, const char* remedy) const {
  if (count <= kMostKeys) return;
  throw StatusError(SPARRING_INVALID_ARGUMENT,
                    std::string(name) + " must be at most " + std::to_string(kMostKeys) + " keys; found " +
                        std::to_string(count) + "; " + remedy);
}

void DeviceTable::State::check_scores(const uint64_t* scores) const {
  if (scores != nullptr && !policy.takes_scores()) {
    throw StatusError(SPARRING_UNSUPPORTED,
                      std::string("scores: policy ") + policy.name() +
                          " does not accept them; omit them, or use policy custom, lfu or epoch_lfu");
  }
}

void DeviceTable::State::check_room(int64_t count, uint64_t num_missing, uint64_t size,
                                    const char* what) const {
  if (size + num_missing <= layout.max_rows) return;
  const Layout same{layout.max_rows, layout.num_fixed_heads, layout.max_overflow,
                    layout.is_bounded};
  throw StatusError(SPARRING_CAPACITY,
                    std::string(what) + " of " + std::to_string(count) + " keys, " +
                        std::to_string(num_missing) + " of them new: the table contains " +
                        std::to_string(size) + " of at most " + std::to_string(layout.max_rows) +
                        " rows, and " + remedy_when_full(same));
}

}  // namespace sparring::hkv
