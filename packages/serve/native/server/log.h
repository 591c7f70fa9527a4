// Log lines on standard error, in the format of the server in Python.
#ifndef SPARRING_SERVE_SERVER_LOG_H_
#define SPARRING_SERVE_SERVER_LOG_H_

#include <string>
#include <string_view>

namespace sparring::serve {

enum class LogLevel { kInfo, kWarning, kError };

// Sets the least level that is written: "error", "info" or "debug".
void set_log_level(std::string_view level);

void log(LogLevel level, const std::string& message);

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_LOG_H_
