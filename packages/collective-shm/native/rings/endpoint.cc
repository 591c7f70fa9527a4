#include "endpoint.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>

namespace sparring::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A message that a running peer sends arrives within this time, and waking up would take as long.
constexpr microseconds kSpin{50};
// Interval between two checks whether a process has ended.
constexpr milliseconds kCheckInterval{5};
// Bytes that one call of process_vm_readv copies, so that messages of several peers advance together.
constexpr std::uint64_t kReadBytes = 4 << 20;
// Bytes of a ring that only notices use, so that a rank can leave although a peer reads nothing.
constexpr std::uint64_t kNoticeBytes = 1024;

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, nanoseconds limit) {
  timespec time{};
  time.tv_sec = static_cast<std::time_t>(limit.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(limit.count() % 1'000'000'000);
  // Not FUTEX_PRIVATE, because other processes wake this one. Any return is a reason to look again.
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool has_become_readable(int descriptor) {
  pollfd polled{descriptor, POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace

Endpoint::Endpoint(const std::vector<int>& inboxes, std::size_t rank, std::size_t capacity,
                   std::size_t direct_bytes, std::uint32_t notice_tag)
    : rank_(rank),
      capacity_(capacity),
      direct_bytes_(direct_bytes),
      notice_tag_(notice_tag),
      peers_(inboxes.size()),
      checked_(Clock::now()) {
  const std::size_t num_ranks = inboxes.size();
  for (std::size_t each = 0; each < num_ranks; ++each) {
    void* found = mmap(nullptr, inbox_bytes(num_ranks, capacity), PROT_READ | PROT_WRITE, MAP_SHARED,
                       inboxes[each], 0);
    if (found == MAP_FAILED) {
      const int code = errno;
      unmap();
      throw std::system_error(code, std::generic_category(), "mmap");
    }
    peers_[each].inbox = static_cast<char*>(found);
  }
  for (std::size_t each = 0; each < num_ranks; ++each) {
    peers_[each].out = Ring(peers_[each].inbox, num_ranks, rank, capacity);
    peers_[each].in = Ring(peers_[rank].inbox, num_ranks, each, capacity);
  }
}

Endpoint::~Endpoint() { unmap(); }

void Endpoint::unmap() {
  for (Peer& peer : peers_) {
    if (peer.inbox != nullptr) munmap(peer.inbox, inbox_bytes(peers_.size(), capacity_));
    peer.inbox = nullptr;
  }
}

void Endpoint::set_peer(std::size_t peer, int end_descriptor, int pid) {
  peers_[peer].end_descriptor = end_descriptor;
  peers_[peer].pid = pid;
}

RequestPointer Endpoint::send(const char* source, std::uint64_t num_bytes, std::size_t to,
                              std::uint32_t tag) {
  auto request = std::make_shared<Request>();
  if (to == rank_) {
    send_to_self(source, num_bytes, tag);
    request->state = RequestState::kDone;
    return request;
  }
  Peer& peer = peers_[to];
  if (num_bytes <= direct_bytes_) {
    put(peer, {{RecordKind::kMessage, tag, num_bytes, 0, 0}, source, request});
  } else {
    const std::uint64_t id = peer.next_id++;
    peer.announced[id] = {source, num_bytes, 0, request};
    put(peer, {{RecordKind::kAnnounce, tag, num_bytes, id, reinterpret_cast<std::uint64_t>(source)},
               nullptr,
               nullptr});
  }
  ring(peer);
  return request;
}

RequestPointer Endpoint::receive(char* target, std::uint64_t num_bytes, std::size_t from,
                                 std::uint32_t tag) {
  auto request = std::make_shared<Request>();
  Peer& peer = peers_[from];
  Box& box = peer.boxes[tag];
  const Receive receive{target, num_bytes, request};
  if (box.arrivals.empty()) {
    box.receives.push_back(receive);
    return request;
  }
  const Arrival arrival = std::move(box.arrivals.front());
  box.arrivals.pop_front();
  if (arrival.record.kind == RecordKind::kAnnounce) {
    accept_large(peer, receive, arrival.record);
  } else if (arrival.record.size != num_bytes) {
    *request = {RequestState::kWrongSize, arrival.record.size};
  } else {
    std::copy(arrival.bytes.begin(), arrival.bytes.end(), target);
    request->state = RequestState::kDone;
  }
  return request;
}

bool Endpoint::progress() {
  if (is_closed_) return false;
  bool has_moved = false;
  for (std::size_t each = 0; each < peers_.size(); ++each) {
    if (each == rank_) continue;
    bool has_changed = drain(each);
    has_changed |= read_memory(peers_[each]);
    has_changed |= flush(each);
    if (has_changed) ring(peers_[each]);
    has_moved |= has_changed;
  }
  if (!has_moved && Clock::now() - checked_ > kCheckInterval) find_ended();
  return has_moved;
}

void Endpoint::wait(const Request& request, double seconds) {
  const auto limit = Clock::now() + std::chrono::duration_cast<nanoseconds>(
                                        std::chrono::duration<double>(seconds));
  auto spin_until = Clock::now() + kSpin;
  while (true) {
    const bool has_moved = progress();
    if (request.state != RequestState::kPending || !events_.empty()) return;
    const auto now = Clock::now();
    if (now >= limit || is_closed_) return;
    if (has_moved)
      spin_until = now + kSpin;
    else if (now < spin_until)
      sched_yield();
    else
      sleep(request, limit);
  }
}

void Endpoint::sleep(const Request& request, Clock::time_point limit) {
  Bell& bell = own_bell();
  bell.is_sleeping.store(1);
  const std::uint32_t count = bell.count.load();
  const bool has_moved = progress();
  const auto now = Clock::now();
  if (!has_moved && request.state == RequestState::kPending && events_.empty() && now < limit)
    futex_wait(bell.count, count, std::min<nanoseconds>(limit - now, kCheckInterval));
  bell.is_sleeping.store(0);
}

bool Endpoint::take_event(Event& event) {
  if (events_.empty()) return false;
  event = events_.front();
  events_.pop_front();
  return true;
}

void Endpoint::close() {
  if (is_closed_) return;
  progress();
  for (Peer& peer : peers_) {
    peer.out.state().has_left.store(1);
    ring(peer);
  }
  unmap();
  is_closed_ = true;
}

void Endpoint::send_to_self(const char* source, std::uint64_t num_bytes, std::uint32_t tag) {
  Box& box = peers_[rank_].boxes[tag];
  const Record record{RecordKind::kMessage, tag, num_bytes, 0, 0};
  if (box.receives.empty()) {
    box.arrivals.push_back({record, {source, source + num_bytes}});
    return;
  }
  const Receive receive = box.receives.front();
  box.receives.pop_front();
  if (receive.size != num_bytes) {
    *receive.request = {RequestState::kWrongSize, num_bytes};
    return;
  }
  std::copy(source, source + num_bytes, receive.target);
  receive.request->state = RequestState::kDone;
}

// Reads the records of a peer. Returns whether there were any.
bool Endpoint::drain(std::size_t from) {
  Peer& peer = peers_[from];
  Record record;
  bool has_any = false;
  while (peer.in.peek(record)) {
    take(from, record);
    const bool has_payload =
        record.kind == RecordKind::kMessage || record.kind == RecordKind::kPiece;
    peer.in.pop(has_payload ? record.size : 0);
    has_any = true;
  }
  return has_any;
}

void Endpoint::take(std::size_t from, const Record& record) {
  Peer& peer = peers_[from];
  switch (record.kind) {
    case RecordKind::kMessage:
      if (record.tag == notice_tag_) {
        Event event{from, false, {}};
        peer.in.copy_payload(event.notice.data(), sizeof(Notice));
        events_.push_back(event);
      } else {
        deliver_small(peer, record);
      }
      return;
    case RecordKind::kAnnounce: {
      Box& box = peer.boxes[record.tag];
      if (box.receives.empty()) {
        box.arrivals.push_back({record, {}});
        return;
      }
      const Receive receive = box.receives.front();
      box.receives.pop_front();
      accept_large(peer, receive, record);
      return;
    }
    case RecordKind::kGrant: {
      const auto found = peer.announced.find(record.id);
      peer.granted.emplace_back(record.id, found->second);
      peer.announced.erase(found);
      return;
    }
    case RecordKind::kPiece: {
      const auto found = peer.in_pieces.find(record.id);
      Incoming& incoming = found->second;
      peer.in.copy_payload(incoming.receive.target + incoming.got, record.size);
      incoming.got += record.size;
      if (incoming.got == incoming.receive.size) {
        incoming.receive.request->state = RequestState::kDone;
        peer.in_pieces.erase(found);
      }
      return;
    }
    case RecordKind::kDone: {
      const auto found = peer.announced.find(record.id);
      found->second.request->state = RequestState::kDone;
      peer.announced.erase(found);
      return;
    }
  }
}

void Endpoint::deliver_small(Peer& peer, const Record& record) {
  Box& box = peer.boxes[record.tag];
  if (box.receives.empty()) {
    box.arrivals.push_back({record, std::vector<char>(record.size)});
    peer.in.copy_payload(box.arrivals.back().bytes.data(), record.size);
    return;
  }
  const Receive receive = box.receives.front();
  box.receives.pop_front();
  if (receive.size != record.size) {
    *receive.request = {RequestState::kWrongSize, record.size};
    return;
  }
  peer.in.copy_payload(receive.target, record.size);
  receive.request->state = RequestState::kDone;
}

void Endpoint::accept_large(Peer& peer, const Receive& receive, const Record& record) {
  if (receive.size != record.size) {
    *receive.request = {RequestState::kWrongSize, record.size};
    put(peer, {{RecordKind::kDone, 0, 0, record.id, 0}, nullptr, nullptr});
    ring(peer);
    return;
  }
  const Incoming incoming{receive, record.id, record.address, 0};
  if (peer.pid != 0) {
    peer.reads.push_back(incoming);
    return;
  }
  peer.in_pieces.emplace(record.id, incoming);
  put(peer, {{RecordKind::kGrant, 0, 0, record.id, 0}, nullptr, nullptr});
  ring(peer);
}

// Copies the next bytes of a large message from the memory of its sender.
bool Endpoint::read_memory(Peer& peer) {
  if (peer.reads.empty()) return false;
  Incoming& incoming = peer.reads.front();
  const std::uint64_t num_bytes = std::min(kReadBytes, incoming.receive.size - incoming.got);
  const iovec target{incoming.receive.target + incoming.got, num_bytes};
  const iovec source{reinterpret_cast<void*>(incoming.address + incoming.got), num_bytes};
  const ssize_t num_read = process_vm_readv(peer.pid, &target, 1, &source, 1, 0);
  const bool is_last = num_read == static_cast<ssize_t>(incoming.receive.size - incoming.got);
  // Orders the copy before the checks. A sender that has left may have changed its buffer meanwhile,
  // and the number of a process that has ended may belong to another one.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (num_read <= 0 || peer.in.state().has_left.load() != 0 ||
      (is_last && has_become_readable(peer.end_descriptor))) {
    incoming.receive.request->state = RequestState::kLost;
    peer.reads.pop_front();
    return true;
  }
  incoming.got += static_cast<std::uint64_t>(num_read);
  if (is_last) {
    incoming.receive.request->state = RequestState::kDone;
    put(peer, {{RecordKind::kDone, 0, 0, incoming.id, 0}, nullptr, nullptr});
    peer.reads.pop_front();
  }
  return true;
}

// Writes queued records, then pieces of granted messages, one of each per round.
bool Endpoint::flush(std::size_t to) {
  Peer& peer = peers_[to];
  bool has_any = false;
  while (!peer.queue.empty()) {
    const Outgoing& first = peer.queue.front();
    if (!fits(peer, first)) return has_any;
    write(peer, first);
    peer.queue.pop_front();
    has_any = true;
  }
  // A quarter of the ring, so that the receiver copies one piece while the sender copies the next.
  const std::uint64_t largest = capacity_ / 4;
  while (!peer.granted.empty()) {
    auto& [id, message] = peer.granted.front();
    const std::uint64_t num_bytes = std::min(largest, message.size - message.sent);
    if (peer.out.room() < sizeof(Record) + padded(num_bytes) + kNoticeBytes) return has_any;
    peer.out.write({RecordKind::kPiece, 0, num_bytes, id, 0}, message.source + message.sent,
                   num_bytes);
    message.sent += num_bytes;
    if (message.sent == message.size) {
      message.request->state = RequestState::kDone;
      peer.granted.pop_front();
    }
    // The receiver starts to copy at once.
    ring(peer);
    has_any = true;
  }
  return has_any;
}

// Notices overtake messages that do not fit.
void Endpoint::put(Peer& peer, const Outgoing& outgoing) {
  const bool may_pass = peer.queue.empty() || outgoing.record.tag == notice_tag_;
  if (may_pass && fits(peer, outgoing))
    write(peer, outgoing);
  else
    peer.queue.push_back(outgoing);
}

bool Endpoint::fits(const Peer& peer, const Outgoing& outgoing) const {
  const std::uint64_t kept = outgoing.record.tag == notice_tag_ ? 0 : kNoticeBytes;
  return peer.out.room() >= sizeof(Record) + padded(outgoing.payload()) + kept;
}

void Endpoint::write(const Peer& peer, const Outgoing& outgoing) {
  peer.out.write(outgoing.record, outgoing.source, outgoing.payload());
  if (outgoing.request) outgoing.request->state = RequestState::kDone;
}

void Endpoint::ring(Peer& peer) {
  Bell& bell = *reinterpret_cast<Bell*>(peer.inbox);
  bell.count.fetch_add(1);
  if (bell.is_sleeping.load() != 0) futex_wake(bell.count);
}

void Endpoint::find_ended() {
  checked_ = Clock::now();
  std::vector<pollfd> polled;
  std::vector<std::size_t> of;
  for (std::size_t each = 0; each < peers_.size(); ++each) {
    if (each == rank_ || peers_[each].has_ended) continue;
    polled.push_back({peers_[each].end_descriptor, POLLIN, 0});
    of.push_back(each);
  }
  if (polled.empty() || poll(polled.data(), polled.size(), 0) <= 0) return;
  for (std::size_t place = 0; place < polled.size(); ++place) {
    if (polled[place].revents == 0) continue;
    // What it sent before its end counts first.
    drain(of[place]);
    peers_[of[place]].has_ended = true;
    events_.push_back({of[place], true, {}});
  }
}

}  // namespace sparring::shm
