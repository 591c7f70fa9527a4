// Memory of a reply, into which rows are written directly; gRPC sends it without a copy.
#ifndef SPARRING_SERVE_SERVER_REPLY_BUFFER_H_
#define SPARRING_SERVE_SERVER_REPLY_BUFFER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdlib>
#include <new>
#include <string>

namespace sparring::serve {

class ReplyBuffer {
 public:
  static constexpr size_t kAlignment = 64;

  explicit ReplyBuffer(size_t size)
      : data_(static_cast<char*>(std::aligned_alloc(kAlignment, rounded(size)))),
        slice_(data_ == nullptr ? throw std::bad_alloc() : data_, size, std::free) {}

  char* data() { return data_; }

  // Returns the bytes from begin to end; they share the memory.
  grpc::Slice part(size_t begin, size_t end) const { return slice_.sub(begin, end); }

  // Returns the smallest multiple of the alignment that is at least `size`.
  static constexpr size_t rounded(size_t size) {
    return size == 0 ? kAlignment : (size + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  char* data_;
  grpc::Slice slice_;
};

// Returns a message of bytes that are copied.
inline grpc::ByteBuffer message_of(const std::string& content) {
  const grpc::Slice slice(content);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_REPLY_BUFFER_H_
