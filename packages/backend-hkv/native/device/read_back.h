// Copies device memory to ordinary host memory through two pinned buffers of equal size: while the
// device fills one, the other is emptied.
//
//   device ──► buffer 0 ──► host        For a direct copy to pageable memory, the driver would copy
//   device ──► buffer 1 ──► host        small pieces itself while the caller waits.
//
// Short spans share a buffer, so that small reads take one copy each and one wait.
#ifndef SPARRING_HKV_DEVICE_READ_BACK_H_
#define SPARRING_HKV_DEVICE_READ_BACK_H_

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory.h"

namespace sparring::device {

class ReadBack {
 public:
  struct Span {
    void* to;          // (num_bytes), host
    const void* from;  // (num_bytes), device
    size_t num_bytes;
  };
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  // Allocates the pinned memory when it is first needed, and keeps it.
  explicit ReadBack(std::shared_ptr<Device> device, size_t piece_bytes = kPieceBytes)
      : device_(std::move(device)), piece_bytes_(piece_bytes) {}
  ~ReadBack();
  ReadBack(const ReadBack&) = delete;
  ReadBack& operator=(const ReadBack&) = delete;

  // Returns when all data are copied. Without pinned memory it copies directly. Throws DeviceError.
  // Thread-safe; reads are serialized.
  void read(std::initializer_list<Span> spans, Stream stream);

 private:
  struct Piece {
    char* memory = nullptr;
    Event event = nullptr;
    std::vector<Span> holds;  // contents of the buffer, with `from` inside it
  };

  // Returns false if there is no pinned memory.
  bool prepare();
  void empty(Piece& piece);

  std::shared_ptr<Device> device_;
  size_t piece_bytes_;
  std::mutex mutex_;
  std::array<Piece, 2> pieces_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_READ_BACK_H_
