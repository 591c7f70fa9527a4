// Answers GET /metrics over HTTP on a separate port, one request at a time.
#ifndef SPARRING_SERVE_SERVER_METRICS_PORT_H_
#define SPARRING_SERVE_SERVER_METRICS_PORT_H_

#include <string>
#include <thread>

#include "server/metrics.h"

namespace sparring::serve {

class MetricsPort {
 public:
  // Port 0 selects a free port. Throws std::runtime_error if it cannot listen on the port.
  MetricsPort(const Metrics& metrics, const std::string& host, int port);
  MetricsPort(const MetricsPort&) = delete;
  MetricsPort& operator=(const MetricsPort&) = delete;
  ~MetricsPort();  // stops listening

  int port() const { return port_; }

 private:
  void serve();
  void answer(int connection) const;

  const Metrics& metrics_;
  int listening_ = -1;
  int stop_[2] = {-1, -1};  // a pipe that ends the thread
  int port_ = 0;
  std::thread thread_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_METRICS_PORT_H_
