#include "server/call.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>
#include <utility>

#include <grpc/grpc.h>

#include "server/handoff.h"
#include "server/log.h"
#include "server/reply_buffer.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

constexpr char kShardMapMetadata[] = "sparring-shard-map-bin";
constexpr char kRequestId[] = "x-request-id";
constexpr size_t kMaxRequestId = 64;

// Maximum time to wait for the message of a health probe.
constexpr double kProbeMessageSeconds = 1.0;

// Larger requests are answered on a work thread: 4,096 ids.
constexpr size_t kInlineBytes = 32 << 10;

std::string_view view_of(const grpc::string_ref& text) { return {text.data(), text.size()}; }

// Returns the last value of a metadata key; empty if there is none.
std::string_view metadata_of(const grpc::GenericCallbackServerContext& context, const char* key) {
  const auto [first, last] = context.client_metadata().equal_range(key);
  return first == last ? std::string_view() : view_of(std::prev(last)->second);
}

// Whether gRPC accepts a value of metadata in a reply; it aborts the process if there is another one.
bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char each) { return each >= ' ' && each <= '~'; });
}

std::string new_request_id() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random()));
  return text;
}

}  // namespace

Call::Call(const CallEnvironment& environment, const Method* method,
           grpc::GenericCallbackServerContext* context)
    : environment_(environment),
      method_(method),
      context_(context),
      name_(context->method().substr(context->method().rfind('/') + 1)),
      peer_(context->peer()),
      arrived_(LookupService::Clock::now()),
      begin_(arrived_) {
  environment_.open_calls.enter(peer_);
  if (method_ == nullptr) {
    end(StatusCode::UNIMPLEMENTED, "Method not found!");
    return;
  }
  try {
    check_caller();
    if (method_->needs_deadline) environment_.service.check_deadline(remaining_seconds());
  } catch (const StatusError& error) {
    count(error);
    refuse(error);
    return;
  }
  wait_for_message();
}

bool Call::enter_lane() {
  CallLane& lane = is_probe() ? environment_.probes : environment_.calls;
  if (lane.enter()) {
    lane_ = &lane;
    return true;
  }
  const StatusError error(
      StatusCode::RESOURCE_EXHAUSTED,
      name_ + ": this server already answers or queues " + std::to_string(lane.max_calls) +
          " calls (16 per thread of server.threads); use another replica, retry later, or increase "
          "server.threads",
      "calls");
  count(error);
  refuse(error);
  return false;
}

Call::~Call() {
  environment_.open_calls.leave(peer_);
  if (cancelled_by_alarm_ != nullptr) grpc_call_unref(cancelled_by_alarm_);
}

void Call::check_caller() {
  if (method_->is_audited) {
    caller_ = peer_;
    for (const grpc::string_ref& each : context_->auth_context()->GetPeerIdentity()) {
      caller_ += ", certificate of " + quoted(view_of(each));
    }
    request_id_ = metadata_of(*context_, kRequestId).substr(0, kMaxRequestId);
    if (request_id_.empty() || !is_printable(request_id_)) request_id_ = new_request_id();
    context_->AddTrailingMetadata(kRequestId, request_id_);
  }
  if (method_->role == Role::kNone) return;
  if (environment_.tokens != nullptr) {
    const Tokens::Caller caller =
        environment_.tokens->check(metadata_of(*context_, "authorization"), method_->role);
    if (method_->is_audited) caller_ += ", " + caller.text;
    if (environment_.quotas != nullptr && caller.role != Role::kAdmin) {
      client_ = &environment_.quotas->admit(caller.client);
    }
  } else if (method_->role != Role::kPull) {
    check_local(peer_, method_->role);
  }
}

double Call::remaining_seconds() const {
  const auto deadline = context_->deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return std::numeric_limits<double>::infinity();
  }
  return std::chrono::duration<double>(deadline - std::chrono::system_clock::now()).count();
}

void Call::wait_for_message() {
  constexpr double kForever = std::numeric_limits<double>::infinity();
  const bool may_be_slow = silent().enter(peer_, context_->c_call(), silent_place_);
  double seconds = may_be_slow ? kForever : SilentCalls::kSlowSeconds;
  if (!method_->needs_deadline) {
    seconds = std::min(seconds, is_probe() ? kProbeMessageSeconds
                                           : environment_.service.settings().max_deadline_seconds);
  }
  if (seconds < kForever) {
    num_references_ = 2;
    // The alarm may ring while the call ends, after which `context_` is gone.
    cancelled_by_alarm_ = context_->c_call();
    grpc_call_ref(cancelled_by_alarm_);
    alarm_ = std::make_unique<grpc::Alarm>();
    const auto end = std::chrono::system_clock::now() +
                     std::chrono::duration_cast<std::chrono::system_clock::duration>(
                         std::chrono::duration<double>(seconds));
    const Handoff handoff(this);
    alarm_->Set(end, [this](bool is_over) {
      receive(this);
      if (is_over) {
        is_late_ = true;
        grpc_call_cancel(cancelled_by_alarm_, nullptr);
      }
      release();
    });
  }
  const Handoff handoff(this);
  StartRead(&request_);
}

void Call::OnReadDone(bool ok) {
  receive(this);
  silent().leave(silent_place_);
  if (alarm_ != nullptr) alarm_->Cancel();
  begin_ = LookupService::Clock::now();
  if (!ok) {
    if (is_late_ || context_->IsCancelled() || remaining_seconds() <= 0) {
      note(StatusCode::CANCELLED);
      if (method_->is_audited) write_audit("CANCELLED");
      end(StatusCode::CANCELLED, "the call ended before its message arrived");
      return;
    }
    const StatusError error(StatusCode::INVALID_ARGUMENT,
                            name_ + ": the call has no message; send one request", "no_message");
    count(error);
    refuse(error);
    return;
  }
  if (!enter_lane()) return;
  if (!request_.TrySingleSlice(&request_bytes_).ok() &&
      !request_.DumpToSingleSlice(&request_bytes_).ok()) {
    refuse(StatusError(StatusCode::INVALID_ARGUMENT, name_ + ": the message cannot be read; send it again",
                       "message"));
    return;
  }
  content_ = {reinterpret_cast<const char*>(request_bytes_.begin()), request_bytes_.size()};
  if (method_->is_long || content_.size() > kInlineBytes) {
    environment_.work.submit([this] { answer(); });
  } else {
    answer();
  }
}

void Call::answer() {
  const Quotas::Charging charging(client_);
  try {
    method_->answer(*this);
  } catch (const StatusError& error) {
    refuse(error);
  } catch (const std::exception& error) {
    fail(error);
  }
}

void Call::reply(Reply reply) {
  admitted_ = std::move(reply.admitted);
  this->reply(std::move(reply.message));
}

void Call::reply(grpc::ByteBuffer message) {
  if (method_->is_audited) write_audit("done");
  leave();
  reply_.Swap(&message);
  const Handoff handoff(this);
  StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
}

void Call::refuse(const StatusError& error) {
  if (!error.shard_map.empty()) context_->AddTrailingMetadata(kShardMapMetadata, error.shard_map);
  if (method_->is_audited) write_audit(name_of(error.code));
  end(error.code, error.what());
}

void Call::fail(const std::exception& error) {
  // The caller does not receive the reason, which may name files of this server.
  log(LogLevel::kError, "a call of " + name_ + " failed: " + error.what());
  if (method_->is_audited) write_audit("failed");
  end(StatusCode::INTERNAL, "an error in this server; its log has the reason");
}

void Call::count(const StatusError& error) {
  environment_.service.metrics().rejected.add(error.reason);
  note(error.code);
}

void Call::note(StatusCode code) {
  if (method_->counts == nullptr) return;
  CallCounts& counts = environment_.service.metrics().*method_->counts;
  counts.note(-1, code);
  counts.observe(std::chrono::duration<double>(LookupService::Clock::now() - arrived_).count());
}

void Call::end(StatusCode code, const std::string& message) {
  leave();
  const Handoff handoff(this);
  Finish(grpc::Status(static_cast<grpc::StatusCode>(code), message));
}

void Call::leave() {
  if (lane_ != nullptr) lane_->leave();
  lane_ = nullptr;
}

void Call::write_audit(std::string_view outcome) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3f",
                std::chrono::duration<double>(LookupService::Clock::now() - arrived_).count());
  log(LogLevel::kInfo, name_ + " by " + caller_ + ": " + std::string(outcome) + " after " + seconds +
                           " s, request id " + quoted(request_id_));
}

void Call::OnDone() {
  receive(this);
  admitted_ = {};  // the reply has been sent; the alarm may delete this call after the server has ended
  if (alarm_ != nullptr) alarm_->Cancel();
  release();
}

void Call::release() {
  if (num_references_.fetch_sub(1) == 1) delete this;
}

}  // namespace sparring::serve
