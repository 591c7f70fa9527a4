#include "server/metrics_port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "server/log.h"
#include "server/tokens.h"

namespace sparring::serve {

namespace {

// A slow client delays the next one by this time at most.
constexpr std::chrono::seconds kConnection{2};
constexpr size_t kMaxRequest = 16 << 10;

// Time until a connection is accepted again if that failed, for example because too many files are open.
constexpr int kRetryMilliseconds = 100;

// Waits until the socket is ready for `event`; returns false if the time is over.
bool wait_for(int socket, short event, std::chrono::steady_clock::time_point end) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  pollfd polled{socket, event, 0};
  return left.count() > 0 && poll(&polled, 1, static_cast<int>(left.count())) == 1;
}

std::string first_line(const std::string& content) {
  const char* const kBlanks = " \t\r\v\f";
  const std::string line = content.substr(0, content.find('\n'));
  const size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string::npos) {
    throw std::runtime_error(
        "server.metrics_token_file: the first line must be the token, found none; correct the file");
  }
  return line.substr(begin, line.find_last_not_of(kBlanks) + 1 - begin);
}

// Returns the value of a header; empty if it is missing. `name` is in lower case.
std::string header_of(const std::string& request, const std::string& name) {
  for (size_t at = request.find("\r\n"); at != std::string::npos; at = request.find("\r\n", at + 2)) {
    const size_t begin = at + 2, colon = begin + name.size();
    const bool is_it = colon < request.size() && request[colon] == ':' &&
                       std::equal(name.begin(), name.end(), request.begin() + static_cast<long>(begin),
                                  [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
    if (!is_it) continue;
    const size_t value = request.find_first_not_of(' ', colon + 1);
    return request.substr(value, request.find("\r\n", value) - value);
  }
  return "";
}

std::string http(const std::string& status, const std::string& more, const std::string& body) {
  return "HTTP/1.0 " + status + "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

}  // namespace

// A connection with or without TLS, until a time.
class MetricsPort::Connection {
 public:
  // `context` is null for plain text.
  Connection(int socket, SSL_CTX* context, Clock::time_point end)
      : socket_(socket), tls_(context == nullptr ? nullptr : SSL_new(context)), end_(end) {
    if (tls_ != nullptr) SSL_set_fd(tls_, socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (tls_ != nullptr) SSL_free(tls_);
    close(socket_);
  }

  bool accept() {
    return tls_ == nullptr || attempt([this] { return SSL_accept(tls_); }) > 0;
  }

  // Returns the number of bytes; 0 at the end, after an error, or if the time is over.
  int read(char* data, int size) {
    if (tls_ != nullptr) return attempt([&] { return SSL_read(tls_, data, size); });
    if (!wait_for(socket_, POLLIN, end_)) return 0;
    return static_cast<int>(recv(socket_, data, static_cast<size_t>(size), 0));
  }
  int write(const char* data, int size) {
    if (tls_ != nullptr) return attempt([&] { return SSL_write(tls_, data, size); });
    if (!wait_for(socket_, POLLOUT, end_)) return 0;
    return static_cast<int>(send(socket_, data, static_cast<size_t>(size), MSG_NOSIGNAL));
  }
  // Tells the client that the reply is complete.
  void finish() {
    if (tls_ != nullptr) attempt([this] { return SSL_shutdown(tls_) < 0 ? -1 : 1; });
  }

 private:
  // Repeats a function of OpenSSL that the socket was not ready for.
  template <class Function>
  int attempt(const Function& function) {
    while (true) {
      ERR_clear_error();
      const int result = function();
      if (result > 0) return result;
      const int reason = SSL_get_error(tls_, result);
      if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE) return 0;
      if (!wait_for(socket_, reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, end_)) return 0;
    }
  }

  const int socket_;
  SSL* const tls_;
  const Clock::time_point end_;
};

MetricsPort::MetricsPort(const Metrics& metrics, const Settings& settings) : metrics_(metrics) {
  const std::string& host = settings.host;
  const int port = settings.metrics_port;
  if (!settings.metrics_token_file.empty()) {
    token_ = std::make_unique<WatchedFile<std::string>>(settings.metrics_token_file, first_line);
  }
  if (settings.metrics_tls) {
    certificate_file_ = settings.certificate_file;
    key_file_ = settings.key_file;
    read_certificate();
    if (context_ == nullptr) {
      throw std::runtime_error("server.metrics_tls: " + certificate_file_ + " or " + key_file_ +
                               " is invalid; correct the files");
    }
  }
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
  }
}

void MetricsPort::read_certificate() {
  const FileStamp found[2] = {stamp_of(certificate_file_), stamp_of(key_file_)};
  if (context_ != nullptr && found[0] == stamps_[0] && found[1] == stamps_[1]) {
    is_certificate_invalid_ = false;
    return;
  }
  Context made(SSL_CTX_new(TLS_server_method()));
  SSL_CTX_set_min_proto_version(made.get(), TLS1_2_VERSION);
  const bool is_valid =
      SSL_CTX_use_certificate_chain_file(made.get(), certificate_file_.c_str()) == 1 &&
      SSL_CTX_use_PrivateKey_file(made.get(), key_file_.c_str(), SSL_FILETYPE_PEM) == 1 &&
      SSL_CTX_check_private_key(made.get()) == 1;
  ERR_clear_error();
  if (!is_valid) {  // the next connection reads the files again
    if (context_ != nullptr && !is_certificate_invalid_) {
      log(LogLevel::kWarning, "server.metrics_tls: " + certificate_file_ + " or " + key_file_ +
                                  " is invalid; the previous content remains in use");
    }
    is_certificate_invalid_ = true;
    return;
  }
  context_ = std::move(made);
  stamps_[0] = found[0];
  stamps_[1] = found[1];
  is_certificate_invalid_ = false;
}

void MetricsPort::answer(int socket) {
  if (!certificate_file_.empty()) read_certificate();
  Connection connection(socket, context_.get(), Clock::now() + kConnection);
  if (!connection.accept()) return;
  std::string request;
  while (request.find("\r\n\r\n") == std::string::npos) {
    char part[4096];
    const int count = request.size() > kMaxRequest ? 0 : connection.read(part, sizeof part);
    if (count <= 0) return;
    request.append(part, static_cast<size_t>(count));
  }
  const std::string reply = reply_to(request);
  for (size_t at = 0; at < reply.size();) {
    const int count = connection.write(reply.data() + at, static_cast<int>(reply.size() - at));
    if (count <= 0) return;
    at += static_cast<size_t>(count);
  }
  connection.finish();
}

std::string MetricsPort::reply_to(const std::string& request) {
  if (token_ != nullptr && !are_equal(header_of(request, "authorization"), "Bearer " + *token_->value())) {
    return http("401 Unauthorized", "WWW-Authenticate: Bearer\r\n",
                "send the token of this server: Authorization: Bearer ...\n");
  }
  const std::string reply = http("200 OK", "", metrics_.text());
  return request.starts_with("HEAD ") ? reply.substr(0, reply.find("\r\n\r\n") + 4) : reply;
}

}  // namespace sparring::serve
