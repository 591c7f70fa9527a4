// One call on a port.
//
// gRPC creates it when the headers of the call have arrived. It checks the token and the deadline at
// once, and then waits for the message without occupying a thread; SilentCalls limits the calls that wait. A
// method that accepts calls without a deadline ends a call whose message does not arrive in time.
#ifndef SPARRING_SERVE_SERVER_CALL_H_
#define SPARRING_SERVE_SERVER_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/limits.h"
#include "server/lookup_service.h"
#include "server/open_calls.h"
#include "server/quotas.h"
#include "server/refresher.h"
#include "server/silent_calls.h"
#include "server/tokens.h"
#include "server/work_threads.h"

namespace sparring::serve {

class Call;

// A method of the port.
struct Method {
  // Answers a call whose message has arrived: finishes it, or throws.
  using Answer = void (*)(Call& call);

  Answer answer;
  Role role = Role::kNone;  // kNone: a probe, which needs no token
  bool needs_deadline = false;
  CallCounts Metrics::*counts = nullptr;  // of calls that are rejected before the method runs
  bool is_audited = false;
  bool is_long = false;  // runs on a work thread
};

// What all calls share. The members outlive the calls.
struct CallEnvironment {
  LookupService& service;
  Refresher& refresher;
  Tokens* tokens;  // null: everyone may look up, and callers on this machine may do everything
  Quotas* quotas;  // null: no quotas
  WorkThreads& work;
  CallLane& calls;
  CallLane& probes;
  SilentCalls& silent_calls;
  SilentCalls& silent_probes;
  OpenCalls& open_calls;
};

class Call final : public grpc::ServerGenericBidiReactor {
 public:
  // Deletes itself when the call has ended. `method` is null if there is no such method.
  Call(const CallEnvironment& environment, const Method* method,
       grpc::GenericCallbackServerContext* context);

  const CallEnvironment& environment() const { return environment_; }
  std::string_view name() const { return name_; }
  std::string_view content() const { return content_; }
  double remaining_seconds() const;
  LookupService::Clock::time_point begin() const { return begin_; }  // the message has arrived

  // End the call; each call is ended once.
  void reply(Reply reply);
  void reply(grpc::ByteBuffer message);
  void refuse(const StatusError& error);
  void fail(const std::exception& error);

 private:
  void OnReadDone(bool ok) override;
  void OnCancel() override {}
  void OnDone() override;
  ~Call() override;

  void check_caller();
  void wait_for_message();
  bool is_probe() const { return method_->role == Role::kNone; }
  SilentCalls& silent() const {
    return is_probe() ? environment_.silent_probes : environment_.silent_calls;
  }
  bool enter_lane();
  void answer();
  void count(const StatusError& error);
  void note(StatusCode code);
  void end(StatusCode code, const std::string& message);
  void leave();
  void release();
  void write_audit(std::string_view outcome);

  const CallEnvironment& environment_;
  const Method* const method_;
  grpc::GenericCallbackServerContext* const context_;
  const std::string name_;
  const std::string peer_;
  const LookupService::Clock::time_point arrived_;
  LookupService::Clock::time_point begin_;
  CallLane* lane_ = nullptr;  // null: the call is not counted
  SilentCalls::Place silent_place_;
  Quotas::Client* client_ = nullptr;  // null: the caller has no quota
  std::atomic<int> num_references_{1};  // of gRPC, and of the alarm
  std::unique_ptr<grpc::Alarm> alarm_;
  grpc_call* cancelled_by_alarm_ = nullptr;  // a reference
  std::atomic<bool> is_late_{false};
  grpc::ByteBuffer request_;
  grpc::Slice request_bytes_;
  std::string_view content_;
  grpc::ByteBuffer reply_;
  Admission::Admitted admitted_;
  std::string caller_;
  std::string request_id_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_CALL_H_
