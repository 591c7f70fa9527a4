#include "server/front_end.h"

#include <grpcpp/server_builder.h>

#include <stdexcept>
#include <utility>

#include "server/certificate.h"
#include "server/log.h"
#include "server/methods.h"
#include "server/process_gauges.h"
#include "server/reloaded_credentials.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

constexpr int kCallsPerThread = 16;
constexpr int kMaxProbes = 32;

TablesOptions tables_options(const Settings& settings) {
  return {settings.snapshots,       settings.pin,           settings.verifies_all,
          settings.keep_versions,   settings.partition_begin, settings.partition_end,
          settings.warm_up_seconds, settings.initial_values};
}

std::string address_of(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace

grpc::ServerGenericBidiReactor* Port::CreateReactor(grpc::GenericCallbackServerContext* context) {
  const auto found = methods_.find(context->method());
  return new Call(environment_, found == methods_.end() ? nullptr : &found->second, context);
}

FrontEnd::FrontEnd(const Settings& settings)
    : settings_(settings),
      library_(settings.library),
      tables_(library_, tables_options(settings)),
      metrics_(settings.metric_help, settings.bucket_bounds, tables_.served()->names),
      service_(settings, tables_, metrics_),
      tokens_(settings.token_file.empty() ? nullptr : std::make_unique<Tokens>(settings.token_file)),
      expiry_(settings.certificate_file.empty()
                  ? nullptr
                  : std::make_unique<WatchedFile<double>>(settings.certificate_file, read_expiry)),
      quotas_(settings.calls_per_second > 0 || settings.ids_per_second > 0
                  ? std::make_unique<Quotas>(settings.calls_per_second, settings.ids_per_second)
                  : nullptr),
      calls_(kCallsPerThread * settings.threads),
      probes_(kMaxProbes),
      silent_calls_(SilentCalls::num_slow_calls(settings.max_bytes_in_flight)),
      refresher_(std::make_unique<Refresher>(tables_, metrics_, settings.poll_seconds)),
      work_(settings.threads),
      environment_{service_, *refresher_, tokens_.get(), quotas_.get(), work_,
                   calls_,   probes_,     silent_calls_, silent_probes_, open_calls_},
      port_(environment_, make_methods(false)),
      health_(environment_, make_methods(true)) {
  if (!tables_.served()->not_fresh.empty()) metrics_.refreshes.add("refused");
  metrics_.set_gauges([this] { return gauges(); });
  if (quotas_ != nullptr) metrics_.set_clients([this] { return quotas_->uses(); });
  if (settings.metrics_port >= 0) {
    metrics_port_ = std::make_unique<MetricsPort>(metrics_, settings);
    log(LogLevel::kInfo, "metrics are on " + address_of(settings.host, metrics_port_->port()));
  }
  if (settings.health_port >= 0) {
    health_server_ = listen(health_, settings.health_port, grpc::InsecureServerCredentials(),
                            "server.health_port", selected_health_port_);
    log(LogLevel::kInfo, "health checks are on " + address_of(settings.host, selected_health_port_));
  }
  credentials_ = settings.certificate_file.empty()
                     ? grpc::InsecureServerCredentials()
                     : std::make_shared<ReloadedCredentials>(settings.certificate_file, settings.key_file,
                                                             settings.ca_file);
  server_ = listen(port_, settings.port, credentials_, "server.address", selected_port_);
}

std::unique_ptr<grpc::Server> FrontEnd::listen(Port& port, int number,
                                               std::shared_ptr<grpc::ServerCredentials> credentials,
                                               const char* option, int& selected) {
  grpc::ServerBuilder builder;
  for (const auto& [name, value] : settings_.channel_options) builder.AddChannelArgument(name, value);
  // Two servers on one port would share its calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  const std::string address = address_of(settings_.host, number);
  builder.AddListeningPort(address, std::move(credentials), &selected);
  builder.RegisterCallbackGenericService(&port);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || selected == 0) {
    throw std::runtime_error("cannot listen on " + address + "; stop the process that uses the port, or set " +
                             option);
  }
  return server;
}

std::string FrontEnd::ready_line() const {
  const auto served = tables_.served();
  const Version& newest = served->versions.front();
  std::string tables;
  for (const TableShape& each : served->tables) {
    tables += (tables.empty() ? "" : ", ") + each.name + " (" + (served->num_layers > 1 ? "at most " : "") +
              with_commas(each.num_rows) + " rows)";
  }
  return "ready on " + address_of(settings_.host, selected_port_) + ": step " + std::to_string(newest.step) +
         ", version " + newest.hash + ", shard " + std::to_string(settings_.shard + 1) + "/" +
         std::to_string(settings_.num_shards) + ": " + tables;
}

void FrontEnd::close() {
  service_.start_draining();
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::system_clock::duration>(
                        std::chrono::duration<double>(settings_.drain_seconds)));
  server_.reset();
  // Both may still answer a call that was cancelled at the end of the drain.
  work_.close();
  metrics_port_.reset();  // reads gauges of the refresher
  refresher_.reset();
  if (health_server_ != nullptr) health_server_->Shutdown(std::chrono::system_clock::now());
  health_server_.reset();
}

Metrics::Gauges FrontEnd::gauges() const {
  const auto served = tables_.served();
  const Version& newest = served->versions.front();
  Metrics::Gauges found = {{"layers", served->num_layers}, {"mapped_bytes", served->mapped_bytes}};
  if (served->warm_up.seconds >= 0) {
    found.emplace_back("warm_up_seconds", served->warm_up.seconds);
    found.emplace_back("warm_up_ids", served->warm_up.num_ids);
    found.emplace_back("warm_up_bytes", served->warm_up.num_bytes);
  }
  found.emplace_back("is_behind", served->not_fresh.empty() ? 0 : 1);
  found.emplace_back("gate_is_closed", served->gate.is_closed ? 1 : 0);
  found.emplace_back("gate_is_pinned", served->gate.is_pinned ? 1 : 0);
  found.emplace_back("version_step", static_cast<double>(newest.step));
  found.emplace_back("staleness_seconds", LookupService::age_of(newest.published));
  found.emplace_back("refresh_seconds", refresher_->last_seconds());
  found.emplace_back("bytes_in_flight",
                     static_cast<double>(service_.bytes_in_flight()));
  found.emplace_back("oldest_call_seconds", work_.oldest_seconds());
  if (expiry_ != nullptr) found.emplace_back("certificate_expires_seconds", *expiry_->value());
  add_process_gauges(found);
  return found;
}

}  // namespace sparring::serve
