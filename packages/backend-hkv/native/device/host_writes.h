// Copies of host memory to a device, read before the call returns, whatever memory it is:
// via pinned pieces, which are used again once their copy is done.
//
//   host ──memcpy──► piece ──stream──► device
//
// A copy straight from pageable memory is read then on most machines, but NVIDIA promises it for
// none, and a GPU that reads the host's memory by itself (GH200) may read it later.
#ifndef SPARRING_HKV_DEVICE_HOST_WRITES_H_
#define SPARRING_HKV_DEVICE_HOST_WRITES_H_

#include <cstddef>
#include <mutex>
#include <vector>

#include "memory.h"

namespace sparring::device {

class HostWrites {
 public:
  // Longer copies take several pieces.
  static constexpr size_t kMostPieceBytes = size_t{1} << 20;
  static constexpr size_t kLeastPieceBytes = size_t{4} << 10;
  // Of pinned memory; a caller that needs more waits for the oldest piece.
  static constexpr size_t kMostBytes = size_t{16} << 20;

  explicit HostWrites(Device& device) : device_(device) {}
  // Waits for what is under way.
  ~HostWrites();
  HostWrites(const HostWrites&) = delete;
  HostWrites& operator=(const HostWrites&) = delete;

  // Without pinned memory it waits for the stream. Throws DeviceError.
  void write(void* to, const void* from, size_t num_bytes, Stream stream);

 private:
  struct Piece {
    char* memory;
    size_t num_bytes;
    Event event;
  };

  // NULL where there is no pinned memory. The piece becomes the newest.
  const Piece* take(size_t num_bytes);

  Device& device_;
  std::mutex mutex_;
  std::vector<Piece> pieces_;  // the least recently used first
  size_t num_bytes_ = 0;       // of all pieces
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_HOST_WRITES_H_
