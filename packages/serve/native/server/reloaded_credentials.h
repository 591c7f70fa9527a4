// TLS credentials whose files are read again when they change; they apply to later connections.
#ifndef SPARRING_SERVE_SERVER_RELOADED_CREDENTIALS_H_
#define SPARRING_SERVE_SERVER_RELOADED_CREDENTIALS_H_

#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <mutex>
#include <string>

#include "server/watched_file.h"

namespace sparring::serve {

// gRPC's C++ interface reads the files of a server once; its C interface requests them for each
// connection. Must outlive the server, which does not keep it.
class ReloadedCredentials final : public grpc::ServerCredentials {
 public:
  // Paths of PEM files. If `ca` is not empty, clients must present a certificate. Throws
  // std::runtime_error if a file cannot be read.
  ReloadedCredentials(const std::string& certificate, const std::string& key, const std::string& ca);
  ~ReloadedCredentials() override;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  using Content = std::shared_ptr<const std::string>;

  int AddPortToServer(const std::string& address, grpc_server* server) override;
  grpc_ssl_certificate_config_reload_status read(grpc_ssl_server_certificate_config** config);

  WatchedFile<std::string> certificate_;
  WatchedFile<std::string> key_;
  std::unique_ptr<WatchedFile<std::string>> ca_;
  std::mutex mutex_;  // protects the last contents
  Content last_certificate_, last_key_, last_ca_;
  grpc_server_credentials* credentials_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_RELOADED_CREDENTIALS_H_
