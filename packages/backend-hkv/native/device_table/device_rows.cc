#include "device_rows.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "device_layout.h"

namespace sparring::hkv {
namespace {

constexpr uint64_t kFirstChunkBytes = uint64_t{16} << 10;
constexpr uint64_t kChunkBytes = uint64_t{64} << 20;
constexpr uint64_t kFirstChunks = 16;  // capacity of the first list of chunks

uint32_t bits_within(uint64_t bytes, uint64_t stride) {
  return stride >= bytes ? 0 : static_cast<uint32_t>(std::bit_width(bytes / stride) - 1);
}

}  // namespace

DeviceRows::DeviceRows(device::Device& device, device::Stream stream, uint64_t row_bytes,
                       uint64_t limit)
    : device_(device), stream_(stream), limit_(limit) {
  view_.stride = device_row_stride(row_bytes);
  view_.first_bits = bits_within(kFirstChunkBytes, view_.stride);
  view_.chunk_bits = bits_within(kChunkBytes, view_.stride);
}

DeviceRows::~DeviceRows() {
  try {
    // Pinned memory is freed at once, independently of streams.
    if (!pinned_.empty()) device_.wait(stream_);
  } catch (const device::DeviceError&) {
    // On a failed device no work runs.
  }
  for (const Pinned& chunk : pinned_) device_.free_pinned(chunk.memory, chunk.bytes);
}

uint64_t DeviceRows::memory_bytes() const {
  return device_bytes_ + pinned_bytes_ + chunk_list_.num_bytes() + free_rows_.num_bytes();
}

void DeviceRows::reserve(uint64_t count, uint64_t device_bytes) {
  count = std::min(count, limit_);
  while (capacity_ < count) {
    const uint64_t next = std::min(limit_, view_.chunk_start(chunks_.size() + 1));
    const uint64_t bytes = (next - capacity_) * view_.stride;
    if (device_bytes == 0 || device_bytes_ + bytes <= device_bytes) {
      in_device_.reserve(in_device_.size() + 1);
      device::Buffer chunk(device_, bytes, stream_, device::Lifetime::kLasting);
      list_chunk(chunk.as<char>());
      in_device_.push_back(std::move(chunk));
      device_bytes_ += bytes;
    } else {
      pinned_.reserve(pinned_.size() + 1);
      char* const chunk = static_cast<char*>(device_.allocate_pinned(bytes));
      try {
        list_chunk(chunk);
      } catch (...) {
        device_.free_pinned(chunk, bytes);
        throw;
      }
      pinned_.push_back({chunk, bytes});
      pinned_bytes_ += bytes;
    }
    capacity_ = next;
  }
}

void DeviceRows::list_chunk(char* memory) {
  chunks_.push_back(memory);
  try {
    const uint64_t room = chunk_list_.num_bytes() / sizeof(char*);
    if (chunks_.size() > room) {
      device::Buffer longer(device_, std::max(kFirstChunks, 2 * room) * sizeof(char*), stream_,
                            device::Lifetime::kLasting);
      device_.write(longer.as<void>(), chunks_.data(), chunks_.size() * sizeof(char*), stream_);
      chunk_list_ = std::move(longer);
      view_.chunks = chunk_list_.as<char*>();
    } else {
      device_.write(chunk_list_.as<char*>() + chunks_.size() - 1, &chunks_.back(), sizeof(char*),
                    stream_);
    }
  } catch (...) {
    chunks_.pop_back();
    throw;
  }
}

void DeviceRows::reserve_list(uint64_t count) {
  if (count <= list_capacity()) return;
  const uint64_t room = std::min(limit_, std::max<uint64_t>(1024, std::bit_ceil(count)));
  device::Buffer longer(device_, room * sizeof(uint32_t), stream_, device::Lifetime::kLasting);
  // All of it, although only the counted part is used: lists are copied completely.
  device_.fill(longer.as<void>(), 0, longer.num_bytes(), stream_);
  if (list_capacity() > 0) {
    device_.copy(longer.as<void>(), free_rows_.as<void>(), free_rows_.num_bytes(), stream_);
  }
  free_rows_ = std::move(longer);
}

}  // namespace sparring::hkv
