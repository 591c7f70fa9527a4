// Time at which the certificate of the server expires.
#ifndef SPARRING_SERVE_SERVER_CERTIFICATE_H_
#define SPARRING_SERVE_SERVER_CERTIFICATE_H_

#include <string>

namespace sparring::serve {

// Returns the time in seconds since 1970 at which the first certificate of a PEM file expires. Logs a
// warning if it has expired or expires within 14 days. Throws std::runtime_error if there is none.
double read_expiry(const std::string& content);

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_CERTIFICATE_H_
