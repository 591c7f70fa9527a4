// The methods of the port by path.
#ifndef SPARRING_SERVE_SERVER_METHODS_H_
#define SPARRING_SERVE_SERVER_METHODS_H_

#include <string>
#include <unordered_map>

#include "server/call.h"

namespace sparring::serve {

// Returns all methods, or only the probes, which need no token.
std::unordered_map<std::string, Method> make_methods(bool only_probes);

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_METHODS_H_
