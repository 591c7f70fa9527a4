// One rank's side of the rings between the ranks of a host.
//
//   small message   bytes in the ring                          the send is complete at once
//   large message   kAnnounce ->                               the receiver copies the bytes from the
//                   <- kDone                                   sender's memory (process_vm_readv)
//   or, if the kernel does not allow that:
//                   kAnnounce -> <- kGrant, kPiece -> ...      both sides copy, through the ring
//
// Large messages are only announced until they are received, so a sender cannot fill the memory of a
// receiver. Both directions advance in each call, so ranks that send to each other never block.
//
// Messages advance only inside calls. An endpoint is used by one thread at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ring.h"

namespace sparring::shm {

enum class RequestState { kPending, kDone, kWrongSize, kLost };

struct Request {
  RequestState state = RequestState::kPending;
  std::uint64_t found_bytes = 0;  // size of the message, for kWrongSize
};
using RequestPointer = std::shared_ptr<Request>;

using Notice = std::array<std::int64_t, 4>;

struct Event {
  std::size_t peer;
  bool has_ended;  // the process has ended; otherwise it sent `notice`
  Notice notice;
};

class Endpoint {
 public:
  // Args:
  //   inboxes: file descriptors of the inboxes of all ranks of the host; not kept.
  //   rank: index of this rank in `inboxes`.
  //   capacity: bytes of each ring.
  //   direct_bytes: larger messages are copied from the sender's memory, not through the ring.
  Endpoint(const std::vector<int>& inboxes, std::size_t rank, std::size_t capacity,
           std::size_t direct_bytes, std::uint32_t notice_tag);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Sets how to detect the end of a peer, and whether its memory can be read.
  //   end_descriptor: becomes readable when the process ends; kept, but not closed.
  //   pid: 0 if the memory of the process cannot be read.
  void set_peer(std::size_t peer, int end_descriptor, int pid);

  // REQUIRES: `source` is not changed or released until the request is complete.
  RequestPointer send(const char* source, std::uint64_t num_bytes, std::size_t peer,
                      std::uint32_t tag);
  // REQUIRES: `target` is not used or released until the request is complete.
  RequestPointer receive(char* target, std::uint64_t num_bytes, std::size_t peer, std::uint32_t tag);

  // Transfers what is possible without waiting. Returns whether anything was.
  bool progress();

  // Returns when the request is complete, an event has arrived, or the time has passed.
  void wait(const Request& request, double seconds);

  // Removes the oldest event. Returns whether there was one.
  bool take_event(Event& event);

  // Sends what fits, declares that the buffers of this rank can no longer be read, and unmaps the
  // inboxes. Later calls do nothing. REQUIRES: `send` and `receive` are not called afterwards.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  struct Receive {
    char* target;
    std::uint64_t size;
    RequestPointer request;
  };
  struct Arrival {  // a message without a receive
    Record record;
    std::vector<char> bytes;  // for kMessage
  };
  struct Box {  // of one tag; at most one of the queues is not empty
    std::deque<Receive> receives;
    std::deque<Arrival> arrivals;
  };
  struct Outgoing {
    Record record;
    const char* source;      // payload of kMessage
    RequestPointer request;  // complete when the payload is in the ring; may be null

    std::uint64_t payload() const { return source != nullptr ? record.size : 0; }
  };
  struct Send {  // a large message
    const char* source;
    std::uint64_t size;
    std::uint64_t sent;
    RequestPointer request;
  };
  struct Incoming {  // a large message whose bytes are being copied
    Receive receive;
    std::uint64_t id;
    std::uint64_t address;
    std::uint64_t got;
  };
  struct Peer {
    char* inbox = nullptr;
    Ring out, in;
    int end_descriptor = -1;
    int pid = 0;
    bool has_ended = false;
    std::uint64_t next_id = 0;
    std::unordered_map<std::uint32_t, Box> boxes;
    std::deque<Outgoing> queue;                             // records that did not fit
    std::unordered_map<std::uint64_t, Send> announced;      // not yet granted or read
    std::deque<std::pair<std::uint64_t, Send>> granted;     // sent in pieces
    std::unordered_map<std::uint64_t, Incoming> in_pieces;  // received in pieces
    std::deque<Incoming> reads;                             // read from the sender's memory
  };

  bool drain(std::size_t peer);
  bool flush(std::size_t peer);
  bool read_memory(Peer& peer);
  void send_to_self(const char* source, std::uint64_t num_bytes, std::uint32_t tag);
  void take(std::size_t peer, const Record& record);
  void deliver_small(Peer& peer, const Record& record);
  void accept_large(Peer& peer, const Receive& receive, const Record& record);
  void put(Peer& peer, const Outgoing& outgoing);
  bool fits(const Peer& peer, const Outgoing& outgoing) const;
  static void write(const Peer& peer, const Outgoing& outgoing);
  void ring(Peer& peer);
  void find_ended();
  void unmap();
  void sleep(const Request& request, Clock::time_point limit);
  Bell& own_bell() { return *reinterpret_cast<Bell*>(peers_[rank_].inbox); }

  const std::size_t rank_, capacity_, direct_bytes_;
  const std::uint32_t notice_tag_;
  std::vector<Peer> peers_;
  std::deque<Event> events_;
  Clock::time_point checked_;
  bool is_closed_ = false;
};

}  // namespace sparring::shm
