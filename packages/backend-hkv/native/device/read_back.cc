#include "read_back.h"

#include <algorithm>
#include <cstring>

namespace sparring::device {

ReadBack::~ReadBack() {
  for (const Piece& piece : pieces_) {
    if (piece.event != nullptr) device_->free_event(piece.event);
    device_->free_pinned(piece.memory, piece_bytes_);
  }
}

bool ReadBack::prepare() {
  for (Piece& piece : pieces_) {
    try {
      if (piece.memory == nullptr)
        piece.memory = static_cast<char*>(device_->allocate_pinned(piece_bytes_));
    } catch (const OutOfDeviceMemory&) {
      return false;
    }
    if (piece.event == nullptr) piece.event = device_->make_event();
  }
  return true;
}

void ReadBack::read(std::initializer_list<Span> spans, Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!prepare()) {
    for (const Span& span : spans) device_->copy(span.to, span.from, span.num_bytes, stream);
    return device_->wait(stream);
  }
  size_t filled = 0;  // the current buffer, and how much of it is filled
  size_t used = 0;
  const auto leave = [&] {
    device_->record(pieces_[filled].event, stream);
    filled = 1 - filled;
    used = 0;
    empty(pieces_[filled]);
  };
  try {
    for (const Span& span : spans) {
      for (size_t at = 0; at < span.num_bytes;) {
        if (used == piece_bytes_) leave();
        Piece& piece = pieces_[filled];
        const size_t num_bytes = std::min(span.num_bytes - at, piece_bytes_ - used);
        char* const in_piece = piece.memory + used;
        device_->copy(in_piece, static_cast<const char*>(span.from) + at, num_bytes, stream);
        piece.holds.push_back({static_cast<char*>(span.to) + at, in_piece, num_bytes});
        at += num_bytes;
        used += num_bytes;
      }
    }
    if (used > 0) leave();
    empty(pieces_[1 - filled]);
  } catch (...) {
    for (Piece& piece : pieces_) piece.holds.clear();
    try {
      device_->wait(stream);  // copies in progress must not overlap the next read
    } catch (const DeviceError&) {
      // If the device has failed, no copies are in progress.
    }
    throw;
  }
}

void ReadBack::empty(Piece& piece) {
  if (piece.holds.empty()) return;
  device_->wait_event(piece.event);
  for (const Span& span : piece.holds) std::memcpy(span.to, span.from, span.num_bytes);
  piece.holds.clear();
}

}  // namespace sparring::device
