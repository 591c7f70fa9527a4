// Bearer tokens and the roles that they grant.
#ifndef SPARRING_SERVE_SERVER_TOKENS_H_
#define SPARRING_SERVE_SERVER_TOKENS_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/watched_file.h"

namespace sparring::serve {

// Each role includes the calls of the roles before it.
enum class Role { kNone, kPull, kPush, kAdmin };

// Rejects a call that came from another machine, with PERMISSION_DENIED. A server without tokens checks
// each call that needs a higher role than `pull`. `peer` is the address as gRPC reports it.
void check_local(const std::string& peer, Role role);

struct Token {
  std::string text;
  Role role;
  int line;
  std::string client;  // name of the owner, or line- and the line
};

// Compares texts in a time that depends only on their lengths.
bool are_equal(std::string_view a, std::string_view b);

// Parses a file of tokens: a line per token, with the role, a space, the token, and optionally a space and
// client= with the name of the owner. Lines that start with # are ignored. Throws std::runtime_error; the
// message contains no token.
std::vector<Token> parse_tokens(const std::string& path, const std::string& content);

class Tokens {
 public:
  // Throws std::runtime_error if the file cannot be read or is invalid.
  explicit Tokens(const std::string& path)
      : file_(path, [path](const std::string& content) { return parse_tokens(path, content); }) {}

  struct Caller {
    Role role;
    std::string client;
    std::string text;  // role and line of the token, for the audit log
  };

  // Checks the value of the metadata `authorization`. Throws StatusError.
  Caller check(std::string_view authorization, Role role);

 private:
  WatchedFile<std::vector<Token>> file_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_TOKENS_H_
