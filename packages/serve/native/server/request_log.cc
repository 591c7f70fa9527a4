#include "server/request_log.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <cstring>
#include <random>

namespace sparring::serve {

bool RequestLog::is_selected() const {
  thread_local std::minstd_rand generator{std::random_device{}()};
  return std::uniform_real_distribution<double>()(generator) < fraction_;
}

void RequestLog::send(LoggedKind kind, std::string_view version, std::string_view content) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = now.count();
  char head[10];
  head[0] = static_cast<char>(kind);
  std::memcpy(head + 1, &seconds, sizeof seconds);
  version = version.substr(0, 255);
  head[9] = static_cast<char>(version.size());
  // sendmsg does not change the parts.
  iovec parts[] = {{head, sizeof head},
                   {const_cast<char*>(version.data()), version.size()},
                   {const_cast<char*>(content.data()), content.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 3;
  const bool is_sent = sendmsg(descriptor_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
  counts_.add(is_sent ? "queued" : "dropped");
}

}  // namespace sparring::serve
