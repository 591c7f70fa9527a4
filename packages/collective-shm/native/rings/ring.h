// A ring of records in shared memory, with one writer and one reader.
//
//   inbox of a rank, a memfd that all ranks of the host map:
//
//     Bell | RingState of sender 0 | RingState of sender 1 | ... | ring of sender 0 | ring of sender 1 | ...
//                                                           ^ multiple of 4 KiB
//   ring, `capacity` bytes, a power of two:
//
//     ... | Record | payload, padded to 32 bytes | Record | payload | ...      payloads wrap at the end
//
// Invariants
//   1. written - read <= capacity. Both only increase, and both are multiples of 32.
//   2. Only the sender changes `written` and `has_left`; only the receiver changes `read`.
//   3. Bytes below `written` were stored before `written` (release), and are loaded after it (acquire).
//      The same holds for `read` and the reuse of the bytes below it.
//   4. Capacity is a multiple of 32, so a Record never wraps.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sparring::shm {

constexpr std::size_t kRecordAlignment = 32;

enum class RecordKind : std::uint32_t {
  kMessage = 1,   // a whole message; its bytes follow
  kAnnounce = 2,  // a large message: the receiver reads it from `address`, or replies with kGrant
  kGrant = 3,     // the receiver of message `id` accepts its pieces
  kPiece = 4,     // the next bytes of message `id`
  kDone = 5,      // the receiver no longer needs the buffer of message `id`
};

struct Record {
  RecordKind kind;
  std::uint32_t tag;
  std::uint64_t size;     // bytes of the message; of the piece for kPiece
  std::uint64_t id;       // number of a large message, counted by its sender
  std::uint64_t address;  // of the buffer in the sender's process, for kAnnounce
};
static_assert(sizeof(Record) == kRecordAlignment);

struct alignas(64) RingState {
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> has_left;  // the sender's buffers can no longer be read
  alignas(64) std::atomic<std::uint64_t> read;
};

// Wakes a rank that sleeps. The rank sets `is_sleeping`, then loads `count`, then looks for work, then
// sleeps while `count` is unchanged. Others make work visible, then increment `count`, then look at
// `is_sleeping`. All five accesses are sequentially consistent.
struct alignas(64) Bell {
  std::atomic<std::uint32_t> count;
  std::atomic<std::uint32_t> is_sleeping;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::uint64_t padded(std::uint64_t size) {
  return (size + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

constexpr std::size_t rings_offset(std::size_t num_ranks) {
  return (sizeof(Bell) + num_ranks * sizeof(RingState) + 4095) / 4096 * 4096;
}

constexpr std::size_t inbox_bytes(std::size_t num_ranks, std::size_t capacity) {
  return rings_offset(num_ranks) + num_ranks * capacity;
}

// The ring of `sender` in an inbox. Used by the sender or by the receiver.
class Ring {
 public:
  Ring() = default;
  Ring(char* inbox, std::size_t num_ranks, std::size_t sender, std::size_t capacity)
      : state_(reinterpret_cast<RingState*>(inbox + sizeof(Bell)) + sender),
        bytes_(inbox + rings_offset(num_ranks) + sender * capacity),
        capacity_(capacity) {}

  RingState& state() const { return *state_; }

  // Bytes that the sender may write.
  std::uint64_t room() const {
    return capacity_ - (state_->written.load(std::memory_order_relaxed) -
                        state_->read.load(std::memory_order_acquire));
  }

  // REQUIRES: room() >= sizeof(Record) + padded(num_bytes).
  void write(const Record& record, const void* payload, std::uint64_t num_bytes) const {
    const std::uint64_t at = state_->written.load(std::memory_order_relaxed);
    copy_in(at, &record, sizeof(Record));
    copy_in(at + sizeof(Record), payload, num_bytes);
    state_->written.store(at + sizeof(Record) + padded(num_bytes), std::memory_order_release);
  }

  // Whether a record is waiting; copies it to `record`.
  bool peek(Record& record) const {
    const std::uint64_t at = state_->read.load(std::memory_order_relaxed);
    if (at == state_->written.load(std::memory_order_acquire)) return false;
    copy_out(at, &record, sizeof(Record));
    return true;
  }

  // Copies the first bytes of the payload of the record that `peek` found.
  void copy_payload(void* target, std::uint64_t num_bytes) const {
    copy_out(state_->read.load(std::memory_order_relaxed) + sizeof(Record), target, num_bytes);
  }

  // Removes the record that `peek` found, with its payload.
  void pop(std::uint64_t num_bytes) {
    const std::uint64_t at = state_->read.load(std::memory_order_relaxed);
    state_->read.store(at + sizeof(Record) + padded(num_bytes), std::memory_order_release);
  }

 private:
  void copy_in(std::uint64_t at, const void* source, std::uint64_t num_bytes) const {
    if (num_bytes == 0) return;
    const std::uint64_t begin = at % capacity_;
    const std::uint64_t first = std::min(num_bytes, capacity_ - begin);
    std::memcpy(bytes_ + begin, source, first);
    std::memcpy(bytes_, static_cast<const char*>(source) + first, num_bytes - first);
  }

  void copy_out(std::uint64_t at, void* target, std::uint64_t num_bytes) const {
    if (num_bytes == 0) return;
    const std::uint64_t begin = at % capacity_;
    const std::uint64_t first = std::min(num_bytes, capacity_ - begin);
    std::memcpy(target, bytes_ + begin, first);
    std::memcpy(static_cast<char*>(target) + first, bytes_, num_bytes - first);
  }

  RingState* state_ = nullptr;
  char* bytes_ = nullptr;
  std::uint64_t capacity_ = 0;
};

}  // namespace sparring::shm
