// Answers GET /metrics over HTTP on a separate port, one request at a time, with TLS and a token if
// configured.
#ifndef SPARRING_SERVE_SERVER_METRICS_PORT_H_
#define SPARRING_SERVE_SERVER_METRICS_PORT_H_

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "server/metrics.h"
#include "server/settings.h"
#include "server/watched_file.h"

namespace sparring::serve {

class MetricsPort {
 public:
  // Port 0 selects a free port. Throws std::runtime_error if it cannot listen on the port, or a file is
  // invalid.
  MetricsPort(const Metrics& metrics, const Settings& settings);
  MetricsPort(const MetricsPort&) = delete;
  MetricsPort& operator=(const MetricsPort&) = delete;
  ~MetricsPort();  // stops listening

  int port() const { return port_; }

 private:
  using Clock = std::chrono::steady_clock;
  class Connection;
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  using Context = std::unique_ptr<SSL_CTX, FreeContext>;

  void serve();
  void answer(int socket);
  std::string reply_to(const std::string& request);
  // Reads the certificate and the key again if they have changed.
  void read_certificate();

  const Metrics& metrics_;
  std::unique_ptr<WatchedFile<std::string>> token_;  // null: no token
  std::string certificate_file_;                     // empty: plain text
  std::string key_file_;
  FileStamp stamps_[2];
  bool is_certificate_invalid_ = false;
  Context context_;
  int listening_ = -1;
  int stop_[2] = {-1, -1};  // a pipe that ends the thread
  int port_ = 0;
  std::thread thread_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_METRICS_PORT_H_
