#include "host_writes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

namespace sparring::device {

HostWrites::~HostWrites() {
  for (const Piece& piece : pieces_) {
    try {
      device_.wait_event(piece.event);
    } catch (const DeviceError&) {
      // A device that has failed reads no more.
    }
    device_.free_event(piece.event);
    device_.free_pinned(piece.memory, piece.num_bytes);
  }
}

void HostWrites::write(void* to, const void* from, size_t num_bytes, Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  for (size_t at = 0; at < num_bytes; at += kMostPieceBytes) {
    const size_t bytes = std::min(num_bytes - at, kMostPieceBytes);
    const Piece* const piece = take(bytes);
    if (piece == nullptr) {
      device_.copy(target + at, source + at, num_bytes - at, stream);
      return device_.wait(stream);
    }
    std::memcpy(piece->memory, source + at, bytes);
    device_.copy(target + at, piece->memory, bytes, stream);
    try {
      device_.record(piece->event, stream);
    } catch (const DeviceError&) {
      device_.wait(stream);  // the buffer may be reused
      throw;
    }
  }
}

auto HostWrites::take(size_t num_bytes) -> const Piece* {
  const auto fits = [&](const Piece& piece) { return piece.num_bytes >= num_bytes; };
  const auto is_free = [&](const Piece& piece) { return fits(piece) && device_.is_done(piece.event); };
  auto found = std::find_if(pieces_.begin(), pieces_.end(), is_free);
  if (found == pieces_.end()) {
    const size_t bytes = std::bit_ceil(std::max(num_bytes, kLeastPieceBytes));
    if (num_bytes_ + bytes <= kMostBytes) {
      pieces_.reserve(pieces_.size() + 1);
      try {
        Piece piece{static_cast<char*>(device_.allocate_pinned(bytes)), bytes, nullptr};
        try {
          piece.event = device_.make_event();
        } catch (...) {
          device_.free_pinned(piece.memory, bytes);
          throw;
        }
        num_bytes_ += bytes;
        pieces_.push_back(piece);
        return &pieces_.back();
      } catch (const OutOfDeviceMemory&) {
        // No free buffer; a used one is waited for.
      }
    }
    found = std::find_if(pieces_.begin(), pieces_.end(), fits);
    if (found == pieces_.end()) return nullptr;
    device_.wait_event(found->event);
  }
  std::rotate(found, found + 1, pieces_.end());
  return &pieces_.back();
}

Device::Device() = default;
Device::~Device() = default;

void Device::write(void* to, const void* from, size_t num_bytes, Stream stream) {
  HostWrites* writes;
  {
    const std::lock_guard<std::mutex> lock(writes_mutex_);
    if (writes_ == nullptr) writes_ = std::make_unique<HostWrites>(*this);
    writes = writes_.get();
  }
  writes->write(to, from, num_bytes, stream);
}

void Device::end_writes() noexcept { writes_.reset(); }

}  // namespace sparring::device
