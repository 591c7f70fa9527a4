// The error that ends a call: a gRPC status with a message, and a reason for the metrics.
#ifndef SPARRING_SERVE_WIRE_STATUS_ERROR_H_
#define SPARRING_SERVE_WIRE_STATUS_ERROR_H_

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace sparring::serve {

// The status codes of gRPC that this server returns, with their numbers.
enum class StatusCode {
  OK = 0,
  CANCELLED = 1,
  INVALID_ARGUMENT = 3,
  DEADLINE_EXCEEDED = 4,
  NOT_FOUND = 5,
  PERMISSION_DENIED = 7,
  RESOURCE_EXHAUSTED = 8,
  FAILED_PRECONDITION = 9,
  UNIMPLEMENTED = 12,
  INTERNAL = 13,
  UNAVAILABLE = 14,
  UNAUTHENTICATED = 16,
};

// Name of a status code, as in the labels of metrics.
std::string_view name_of(StatusCode code);

struct StatusError : std::runtime_error {
  StatusError(StatusCode status, const std::string& message, std::string label,
              std::string attached_shard_map = {})
      : std::runtime_error(message),
        code(status),
        reason(std::move(label)),
        shard_map(std::move(attached_shard_map)) {}

  StatusCode code;
  std::string reason;     // label of the metric of rejected calls
  std::string shard_map;  // encoded ShardMap for the trailing metadata; empty: none
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_WIRE_STATUS_ERROR_H_
