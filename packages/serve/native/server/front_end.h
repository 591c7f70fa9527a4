// The server: its ports, from the constructor until `close`.
#ifndef SPARRING_SERVE_SERVER_FRONT_END_H_
#define SPARRING_SERVE_SERVER_FRONT_END_H_

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "server/call.h"
#include "server/metrics_port.h"
#include "server/settings.h"
#include "server/watched_file.h"

namespace sparring::serve {

// Creates the calls of one port.
class Port final : public grpc::CallbackGenericService {
 public:
  Port(const CallEnvironment& environment, std::unordered_map<std::string, Method> methods)
      : environment_(environment), methods_(std::move(methods)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  const CallEnvironment& environment_;
  const std::unordered_map<std::string, Method> methods_;
};

class FrontEnd {
 public:
  // Opens the tables and the ports. Throws std::runtime_error.
  explicit FrontEnd(const Settings& settings);

  // Describes the address, the version, the shard and the tables.
  std::string ready_line() const;

  // Drains: rejects new calls, completes calls in progress, and closes the ports.
  void close();

 private:
  std::unique_ptr<grpc::Server> listen(Port& port, int number,
                                       std::shared_ptr<grpc::ServerCredentials> credentials,
                                       const char* option, int& selected);
  Metrics::Gauges gauges() const;

  const Settings& settings_;
  PackedLibrary library_;
  ServingTables tables_;
  Metrics metrics_;
  LookupService service_;
  std::unique_ptr<Tokens> tokens_;
  std::unique_ptr<WatchedFile<double>> expiry_;  // of the certificate
  std::unique_ptr<Quotas> quotas_;
  CallLane calls_;
  CallLane probes_;
  SilentCalls silent_calls_;
  SilentCalls silent_probes_;
  OpenCalls open_calls_;
  std::unique_ptr<Refresher> refresher_;
  WorkThreads work_;
  CallEnvironment environment_;
  Port port_;
  Port health_;
  std::unique_ptr<MetricsPort> metrics_port_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // gRPC reads its files while it listens
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::Server> health_server_;
  int selected_port_ = 0;
  int selected_health_port_ = 0;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_FRONT_END_H_
