#include "server/metrics_port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace sparring::serve {

namespace {

// A slow client delays the next one by this time at most.
constexpr std::chrono::seconds kConnection{2};
constexpr size_t kMaxRequest = 16 << 10;

// Time until a connection is accepted again if that failed, for example because too many files are open.
constexpr int kRetryMilliseconds = 100;

using Clock = std::chrono::steady_clock;

// Waits until the socket is ready for `event`; returns false if the time is over.
bool wait_for(int socket, short event, Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  pollfd polled{socket, event, 0};
  return left.count() > 0 && poll(&polled, 1, static_cast<int>(left.count())) == 1;
}

}  // namespace

MetricsPort::MetricsPort(const Metrics& metrics, const std::string& host, int port)
    : metrics_(metrics) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  std::string reason = failed == 0 ? "" : gai_strerror(failed);
  if (failed == 0) {
    listening_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    setsockopt(listening_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listening_, found->ai_addr, found->ai_addrlen) != 0 || listen(listening_, 16) != 0) {
      reason = std::strerror(errno);
    }
    freeaddrinfo(found);
  }
  if (!reason.empty()) {
    if (listening_ >= 0) close(listening_);
    throw std::runtime_error("metrics: cannot listen on " + host + ":" + std::to_string(port) + " (" +
                             reason + "); choose another server.metrics_port");
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(listening_, reinterpret_cast<sockaddr*>(&bound), &size);
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  if (pipe(stop_) != 0) throw std::runtime_error("cannot create a pipe; increase the limit of files");
  thread_ = std::thread([this] { serve(); });
}

MetricsPort::~MetricsPort() {
  close(stop_[1]);
  thread_.join();
  close(stop_[0]);
  close(listening_);
}

void MetricsPort::serve() {
  while (true) {
    pollfd polled[2] = {{listening_, POLLIN, 0}, {stop_[0], POLLIN, 0}};
    if (poll(polled, 2, -1) < 0) continue;
    if (polled[1].revents != 0) return;
    const int connection = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) {
      poll(&polled[1], 1, kRetryMilliseconds);
      continue;
    }
    answer(connection);
    close(connection);
  }
}

void MetricsPort::answer(int connection) const {
  const auto end = Clock::now() + kConnection;
  std::string request;
  while (request.find("\r\n\r\n") == std::string::npos) {
    char part[4096];
    if (request.size() > kMaxRequest || !wait_for(connection, POLLIN, end)) return;
    const ssize_t count = recv(connection, part, sizeof part, 0);
    if (count <= 0) return;
    request.append(part, static_cast<size_t>(count));
  }
  const std::string body = metrics_.text();
  std::string reply = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
  reply += "Content-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n";
  if (!request.starts_with("HEAD ")) reply += body;
  for (size_t at = 0; at < reply.size();) {
    if (!wait_for(connection, POLLOUT, end)) return;
    const ssize_t count = send(connection, reply.data() + at, reply.size() - at, MSG_NOSIGNAL);
    if (count <= 0) return;
    at += static_cast<size_t>(count);
  }
}

}  // namespace sparring::serve
