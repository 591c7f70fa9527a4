// Copies host memory to a device and reads it before the call returns, for any kind of memory. The
// data are copied to pinned buffers, which are reused when their copy is done.
//
//   host ──memcpy──► buffer ──stream──► device
//
// On most machines a direct copy from pageable memory also reads it before returning, but NVIDIA
// does not guarantee it, and a GPU that can read host memory itself (GH200) may read it later.
#ifndef SPARRING_HKV_DEVICE_HOST_WRITES_H_
#define SPARRING_HKV_DEVICE_HOST_WRITES_H_

#include <cstddef>
#include <mutex>
#include <vector>

#include "memory.h"

namespace sparring::device {

class HostWrites {
 public:
  // Larger copies use several buffers.
  static constexpr size_t kMostPieceBytes = size_t{1} << 20;
  static constexpr size_t kLeastPieceBytes = size_t{4} << 10;
  // Maximum pinned memory; beyond it, a caller waits for the oldest buffer.
  static constexpr size_t kMostBytes = size_t{16} << 20;

  explicit HostWrites(Device& device) : device_(device) {}
  // Waits for copies in progress.
  ~HostWrites();
  HostWrites(const HostWrites&) = delete;
  HostWrites& operator=(const HostWrites&) = delete;

  // Waits for the stream if there is no pinned memory. Throws DeviceError.
  void write(void* to, const void* from, size_t num_bytes, Stream stream);

 private:
  struct Piece {
    char* memory;
    size_t num_bytes;
    Event event;
  };

  // Returns NULL if there is no pinned memory. The buffer becomes the newest.
  const Piece* take(size_t num_bytes);

  Device& device_;
  std::mutex mutex_;
  std::vector<Piece> pieces_;  // least recently used first
  size_t num_bytes_ = 0;       // of all buffers
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_HOST_WRITES_H_
