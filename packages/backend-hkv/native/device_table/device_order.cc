#include "device_order.h"

namespace sparring::hkv {

DeviceOrder::DeviceOrder(device::Device& device)
    : device_(device), last_write_(device.make_event()), passing_(device.make_event()) {}

DeviceOrder::~DeviceOrder() {
  for (const auto& [stream, reader] : readers_) device_.free_event(reader.event);
  device_.free_event(last_write_);
  device_.free_event(passing_);
}

void DeviceOrder::begin_read(device::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (was_written_) device_.order_after(last_write_, stream);
}

void DeviceOrder::end_read(device::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = readers_.find(stream);
  Reader& reader = found != readers_.end()
                       ? found->second
                       : readers_.emplace(stream, Reader{device_.make_event(), false}).first->second;
  // Otherwise a new stream with the same address would hide the reads of the old one.
  if (reader.has_read) device_.order_after(reader.event, stream);
  device_.record(reader.event, stream);
  reader.has_read = true;
}

void DeviceOrder::begin_write(device::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [other, reader] : readers_) {
    if (reader.has_read) device_.order_after(reader.event, stream);
  }
  if (was_written_) device_.order_after(last_write_, stream);
  // Only after all waits: if one failed, the next writer must wait for these readers too.
  for (auto& [other, reader] : readers_) reader.has_read = false;
}

void DeviceOrder::end_write(device::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  device_.record(last_write_, stream);
  was_written_ = true;
}

void DeviceOrder::pass(device::Stream earlier, device::Stream later) {
  if (earlier == later) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  device_.record(passing_, earlier);
  device_.order_after(passing_, later);
}

Detour::~Detour() {
  try {
    order_.pass(own_, stream_);
  } catch (const device::DeviceError&) {
    // Later calls will fail as well and report the error.
  }
}

}  // namespace sparring::hkv
