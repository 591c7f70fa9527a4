#include "server/tokens.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <sstream>

#include "wire/status_error.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

constexpr size_t kMaxTokens = 1000;
constexpr size_t kMinToken = 16;
constexpr size_t kMaxToken = 4096;

constexpr const char* kRoles[] = {"", "pull", "push", "admin"};

constexpr std::string_view kClient = "client=";
constexpr size_t kMaxClient = 64;

// Returns the name in `client=NAME`; empty if it has another form.
std::string client_of(std::string_view word) {
  if (!word.starts_with(kClient)) return "";
  word.remove_prefix(kClient.size());
  const bool is_valid = word.size() <= kMaxClient && std::all_of(word.begin(), word.end(), [](char each) {
                          return std::isalnum(static_cast<unsigned char>(each)) != 0 || each == '_' ||
                                 each == '.' || each == '-';
                        });
  return is_valid ? std::string(word) : "";
}

bool is_bearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer";
  return std::equal(scheme.begin(), scheme.end(), kBearer.begin(), kBearer.end(),
                    [](char a, char b) { return (a | 0x20) == b; });
}

bool is_local(std::string peer) {
  for (char& each : peer) each = static_cast<char>(std::tolower(static_cast<unsigned char>(each)));
  if (peer.starts_with("unix:") || peer.starts_with("ipv4:127.")) return true;
  if (!peer.starts_with("ipv6:")) return false;
  std::string_view rest(peer);
  rest.remove_prefix(5);
  if (!rest.starts_with("[") && !rest.starts_with("%5b")) return false;
  rest.remove_prefix(rest.starts_with("[") ? 1 : 3);
  constexpr std::string_view kMapped = "::ffff:127.";
  if (rest.starts_with(kMapped)) {
    rest.remove_prefix(std::min(rest.find_first_not_of("0123456789.", kMapped.size()), rest.size()));
  } else if (rest.starts_with("::1")) {
    rest.remove_prefix(3);
  } else {
    return false;
  }
  return rest.starts_with("]:") || rest.starts_with("%5d:");
}

}  // namespace

bool are_equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char differing = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differing = static_cast<unsigned char>(differing | (a[i] ^ b[i]));
  }
  // The compiler must not end the loop early.
  asm volatile("" : "+r"(differing));
  return differing == 0;
}

void check_local(const std::string& peer, Role role) {
  if (is_local(peer)) return;
  throw StatusError(
      StatusCode::PERMISSION_DENIED,
      "the call needs the role " + std::string(kRoles[static_cast<int>(role)]) + " and came from " + peer +
          ". A server without server.token_file accepts pushes, flushes, saves, loads and refreshes from "
          "loopback addresses only; set server.token_file on the server and client.token_file on the "
          "caller's side",
      "no_tokens");
}

std::vector<Token> parse_tokens(const std::string& path, const std::string& content) {
  for (const char each : content) {
    if (static_cast<unsigned char>(each) >= 0x80) {
      throw std::runtime_error(path + ": tokens must be ASCII; use letters and digits");
    }
  }
  std::vector<Token> tokens;
  std::istringstream lines(content);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream parts(line);
    std::vector<std::string> words;
    for (std::string word; parts >> word;) words.push_back(word);
    if (words.empty() || words[0].starts_with("#")) continue;
    const auto* const role = std::find(std::begin(kRoles) + 1, std::end(kRoles), words[0]);
    const std::string client = words.size() == 3 ? client_of(words[2]) : "";
    if (words.size() != (client.empty() ? 2 : 3) || role == std::end(kRoles) ||
        words[1].size() < kMinToken || words[1].size() > kMaxToken) {
      throw std::runtime_error(path + ":" + std::to_string(number) +
                               ": must be a role (pull, push or admin), a blank, and a token of 16 to "
                               "4,096 characters; and optionally a blank and client=NAME, with a name of 1 "
                               "to 64 letters, digits, '_', '.' or '-'");
    }
    std::erase_if(tokens, [&](const Token& each) { return each.text == words[1]; });
    tokens.push_back({words[1], static_cast<Role>(role - std::begin(kRoles)), number,
                      client.empty() ? "line-" + std::to_string(number) : client});
  }
  if (tokens.empty() || tokens.size() > kMaxTokens) {
    throw std::runtime_error(path + ": has " + with_commas(static_cast<int64_t>(tokens.size())) +
                             " tokens, must have 1 to 1,000; " +
                             (tokens.empty() ? "add a line such as: pull <token>"
                                             : "remove unused tokens"));
  }
  return tokens;
}

Tokens::Caller Tokens::check(std::string_view authorization, Role role) {
  const size_t blank = authorization.find(' ');
  const std::string_view scheme = authorization.substr(0, blank);
  const std::string_view given =
      blank == std::string_view::npos ? std::string_view() : authorization.substr(blank + 1);
  const auto tokens = file_.value();
  const Token* found = nullptr;
  // All tokens are compared, so that the duration reveals nothing about them.
  for (const Token& each : *tokens) {
    if (are_equal(each.text, given)) found = &each;
  }
  if (found == nullptr || !is_bearer(scheme)) {
    throw StatusError(StatusCode::UNAUTHENTICATED,
                      "the call has no valid token; set client.token_file to a file with a token of this "
                      "server",
                      "token");
  }
  const std::string has = kRoles[static_cast<int>(found->role)];
  if (found->role < role) {
    throw StatusError(StatusCode::PERMISSION_DENIED,
                      "this call needs a token of the role " +
                          std::string(kRoles[static_cast<int>(role)]) + ", found the role " + has +
                          "; use another token",
                      "role");
  }
  return {found->role, found->client, has + " token of line " + std::to_string(found->line)};
}

}  // namespace sparring::serve
