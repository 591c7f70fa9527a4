#include "emulated_streams.h"

#include "device_scope.h"
#include "stream_refusal.h"

namespace sparring::device {

void EmulatedStreams::add(Stream stream, int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_[stream] = {device};
}

void EmulatedStreams::remove(Stream stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(stream);
}

auto EmulatedStreams::find(Stream stream) const -> Known {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(stream);
  return found == streams_.end() ? Known{-1} : found->second;
}

void EmulatedStreams::check_device(Stream stream, int device) const {
  const int owner = find(stream).device;
  if (owner >= 0 && owner != device)
    refuse_device_of_stream(emulated_name(owner), emulated_name(device));
}

void EmulatedStreams::check_capture(Stream stream) const {
  if (find(stream).is_captured) refuse_captured_stream();
}

void EmulatedStreams::use(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stream == nullptr) ++num_default_uses_;
  const auto found = streams_.find(stream);
  if (found == streams_.end() || !found->second.is_captured) return;
  found->second.is_spoilt = true;
  throw DeviceError("the stream is being captured, and the capture is now invalid");
}

void EmulatedStreams::use(Stream stream, int device) {
  use(stream);
  const int owner = find(stream).device;
  if (owner >= 0 && owner != device) throw DeviceError("invalid resource handle");
}

void EmulatedStreams::use_unsafely() {
  if (capture_mode == kRelaxedCapture) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  bool does_spoil = false;
  for (auto& [stream, known] : streams_) {
    if (!known.is_captured) continue;
    if (capture_mode != 0 && known.captures != std::this_thread::get_id()) continue;
    known.is_spoilt = does_spoil = true;
  }
  if (does_spoil)
    throw DeviceError("operation not permitted when a stream is capturing; the capture is now invalid");
}

uint64_t EmulatedStreams::num_default_uses() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_default_uses_;
}

void EmulatedStreams::begin_capture(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Known& known = streams_.at(stream);
  known.is_captured = true;
  known.is_spoilt = false;
  known.captures = std::this_thread::get_id();
}

bool EmulatedStreams::end_capture(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Known& known = streams_.at(stream);
  known.is_captured = false;
  return !known.is_spoilt;
}

}  // namespace sparring::device
