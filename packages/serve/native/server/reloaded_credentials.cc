#include "server/reloaded_credentials.h"

#include <grpc/grpc.h>

#include "server/handoff.h"

namespace sparring::serve {

namespace {

std::string unchanged(const std::string& content) { return content; }

}  // namespace

ReloadedCredentials::ReloadedCredentials(const std::string& certificate, const std::string& key,
                                         const std::string& ca)
    : certificate_(certificate, unchanged), key_(key, unchanged) {
  if (!ca.empty()) ca_ = std::make_unique<WatchedFile<std::string>>(ca, unchanged);
  const auto callback = [](void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<ReloadedCredentials*>(self)->read(config);
  };
  grpc_ssl_server_credentials_options* const options =
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                     : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
          callback, this);
  const Handoff handoff(this);
  credentials_ = grpc_ssl_server_credentials_create_with_options(options);
}

ReloadedCredentials::~ReloadedCredentials() { grpc_server_credentials_release(credentials_); }

int ReloadedCredentials::AddPortToServer(const std::string& address, grpc_server* server) {
  return grpc_server_add_http2_port(server, address.c_str(), credentials_);
}

grpc_ssl_certificate_config_reload_status ReloadedCredentials::read(
    grpc_ssl_server_certificate_config** config) {
  receive(this);
  const Content certificate = certificate_.value();
  const Content key = key_.value();
  const Content ca = ca_ == nullptr ? nullptr : ca_->value();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (certificate == last_certificate_ && key == last_key_ && ca == last_ca_) {
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  }
  last_certificate_ = certificate;
  last_key_ = key;
  last_ca_ = ca;
  const grpc_ssl_pem_key_cert_pair pair{key->c_str(), certificate->c_str()};
  // gRPC requires certificates to trust even if clients are not asked for one, and ignores them then.
  *config = grpc_ssl_server_certificate_config_create((ca == nullptr ? certificate : ca)->c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

}  // namespace sparring::serve
