#include "server/methods.h"

#include <string_view>

#include "server/inference.h"
#include "server/recommend.h"
#include "server/reply_buffer.h"
#include "wire/fields.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

constexpr char kLookup[] = "sparring.serving.v1.Lookup";
constexpr char kInference[] = "inference.GRPCInferenceService";
constexpr char kHealth[] = "grpc.health.v1.Health";

// Service name of a health check that only tests whether the server replies, not whether it is ready.
constexpr std::string_view kLiveness = "liveness";

constexpr uint64_t kServing = 1;
constexpr uint64_t kNotServing = 2;

LookupService& service_of(const Call& call) { return call.environment().service; }

void pull(Call& call) {
  call.reply(service_of(call).pull(call.content(), call.remaining_seconds(), call.begin()));
}

void scan(Call& call) { call.reply(service_of(call).scan(call.content(), call.remaining_seconds())); }

void read_model(Call& call) {
  call.reply(service_of(call).read_model(call.content(), call.remaining_seconds()));
}

void recommend(Call& call) {
  call.reply(message_of(
      Recommend(service_of(call)).answer(call.content(), call.remaining_seconds(), call.begin())));
}

void describe(Call& call) { call.reply(message_of(service_of(call).describe(call.content()))); }

void refresh(Call& call) {
  for (FieldReader reader("RefreshRequest", call.content()); reader.next();) continue;
  service_of(call).check_deadline(call.remaining_seconds());
  call.environment().refresher.hint([&call](const RefreshResult& result) {
    std::string reply;
    FieldWriter writer(reply);
    writer.message(1, service_of(call).tables().served()->versions.front().encoded);
    writer.whole(2, result.is_new ? 1 : 0);
    writer.text(3, result.refused);
    call.reply(message_of(reply));
  });
}

void refuse_change(Call& call) {
  throw StatusError(StatusCode::UNIMPLEMENTED,
                    std::string(call.name()) +
                        ": this server has the role inference, which is read-only; call servers that "
                        "were started with --role parameters",
                    "role_inference");
}

void infer(Call& call) {
  call.reply(Inference(service_of(call)).infer(call.content(), call.remaining_seconds(), call.begin()));
}

void model_ready(Call& call) {
  call.reply(message_of(Inference(service_of(call)).model_ready(call.content())));
}

void model_metadata(Call& call) {
  call.reply(message_of(Inference(service_of(call)).model_metadata(call.content())));
}

void server_metadata(Call& call) {
  std::string reply;
  FieldWriter writer(reply);
  writer.text(1, "sparring");
  writer.text(2, service_of(call).settings().core_release);
  call.reply(message_of(reply));
}

void reply_flag(Call& call, const char* message, bool is_set) {
  for (FieldReader reader(message, call.content()); reader.next();) continue;
  std::string reply;
  FieldWriter(reply).whole(1, is_set ? 1 : 0);
  call.reply(message_of(reply));
}

void live(Call& call) { reply_flag(call, "NoFields", true); }

void ready(Call& call) { reply_flag(call, "NoFields", service_of(call).is_ready()); }

void health(Call& call) {
  std::string_view asked;
  for (FieldReader reader("HealthRequest", call.content()); reader.next();) {
    if (reader.number() == 1) asked = reader.text("service");
  }
  if (asked != kLiveness && asked != "" && asked != kLookup && asked != kInference) {
    throw StatusError(StatusCode::NOT_FOUND,
                      "unknown service " + quoted(asked) + "; use " + quoted(kLookup), "not_found");
  }
  const bool is_ready = asked == kLiveness || service_of(call).is_ready();
  std::string reply;
  FieldWriter(reply).whole(1, is_ready ? kServing : kNotServing);
  call.reply(message_of(reply));
}

}  // namespace

std::unordered_map<std::string, Method> make_methods(bool only_probes) {
  const auto path = [](const char* service, const char* name) {
    return "/" + std::string(service) + "/" + name;
  };
  std::unordered_map<std::string, Method> methods = {
      {path(kHealth, "Check"), {health}},
      {path(kInference, "ServerLive"), {live}},
      {path(kInference, "ServerReady"), {ready}},
  };
  if (only_probes) return methods;
  constexpr auto kPull = Role::kPull;
  methods[path(kLookup, "Pull")] = {pull, kPull, true, &Metrics::pulls};
  methods[path(kLookup, "Scan")] = {scan, kPull, true, nullptr, false, true};
  methods[path(kLookup, "ReadModel")] = {read_model, kPull, true, nullptr, false, true};
  methods[path(kLookup, "Recommend")] = {recommend, kPull, true, &Metrics::recommends, false, true};
  methods[path(kLookup, "Describe")] = {describe, kPull};
  methods[path(kLookup, "Refresh")] = {refresh, Role::kAdmin, true, nullptr, true};
  for (const char* name : {"Push", "Flush", "Save", "Load", "SavePart", "LoadPart", "Replicate", "Move",
                           "MovePart"}) {
    methods[path(kLookup, name)] = {refuse_change, kPull};
  }
  methods[path(kInference, "ModelInfer")] = {infer, kPull, false, &Metrics::pulls};
  methods[path(kInference, "ModelMetadata")] = {model_metadata, kPull};
  methods[path(kInference, "ModelReady")] = {model_ready, kPull};
  methods[path(kInference, "ServerMetadata")] = {server_metadata, kPull};
  return methods;
}

}  // namespace sparring::serve
