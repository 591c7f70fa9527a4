// Copies device memory to ordinary host memory via pinned memory, of which there are
// two pieces of one size: while the device fills one, the other is emptied.
//
//   device ──► piece 0 ──► host        A copy straight to pageable memory would be one of the
//   device ──► piece 1 ──► host        driver's own, a little at a time, with the caller waiting.
//
// Spans that are short share a piece, so that little memory takes one copy each and one wait.
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

  // Takes the pinned memory when it is first needed, and keeps it.
  explicit ReadBack(std::shared_ptr<Device> device, size_t piece_bytes = kPieceBytes)
      : device_(std::move(device)), piece_bytes_(piece_bytes) {}
  ~ReadBack();
  ReadBack(const ReadBack&) = delete;
  ReadBack& operator=(const ReadBack&) = delete;

  // Returns when all is there. Without pinned memory it copies straight. Throws DeviceError.
  // From any thread; one at a time reads.
  void read(std::initializer_list<Span> spans, Stream stream);

 private:
  struct Piece {
    char* memory = nullptr;
    Event event = nullptr;
    std::vector<Span> holds;  // contents of the piece, `from` within it
  };

  // Returns false where there is no pinned memory.
  bool prepare();
  void empty(Piece& piece);

  std::shared_ptr<Device> device_;
  size_t piece_bytes_;
  std::mutex mutex_;
  std::array<Piece, 2> pieces_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_READ_BACK_H_
