#include "server/tokens.h"

#include <string>

#include "check.h"
#include "wire/status_error.h"

using namespace sparring::serve;

namespace {

bool is_accepted(const std::string& peer) {
  try {
    check_local(peer, Role::kPush);
    return true;
  } catch (const StatusError& error) {
    CHECK(error.code == StatusCode::PERMISSION_DENIED);
    return false;
  }
}

void loopback_addresses_are_local_and_no_others() {
  for (const char* peer :
       {"ipv4:127.0.0.1:5000", "ipv4:127.9.9.9:5000", "ipv6:[::1]:5000", "ipv6:%5B::1%5D:5000",
        "ipv6:[::ffff:127.0.0.1]:5000", "ipv6:%5B::ffff:127.0.0.1%5D:5000", "unix:/tmp/socket", "unix:"}) {
    CHECK(is_accepted(peer));
  }
  for (const char* peer :
       {"ipv4:10.0.0.7:5000", "ipv4:128.127.0.1:5000", "ipv4:1127.0.0.1:5000", "ipv6:[::12]:5000",
        "ipv6:[::ffff:10.0.0.7]:5000", "ipv6:%5Bfe80::1%5D:5000", "vsock:1:2", "127.0.0.1:5000", "",
        "ipv6:::1]:5000", "ipv6:[]:5000"}) {
    CHECK(!is_accepted(peer));
  }
}

void tokens_have_a_role_and_a_line() {
  const std::string pull(16, 'p');
  const auto tokens = parse_tokens("file", "# who\n\npull " + pull + "\nadmin " + std::string(16, 'a'));
  CHECK(tokens.size() == 2 && tokens[0].role == Role::kPull && tokens[0].text == pull);
  CHECK(tokens[1].role == Role::kAdmin && tokens[1].line == 4 && tokens[1].client == "line-4");
  CHECK(parse_tokens("file", "pull " + pull + " client=ads.v2-a_1")[0].client == "ads.v2-a_1");
  for (const std::string& wrong : {std::string(), "root " + pull, std::string("pull short"),
                                   "pull " + pull + " more", "pull " + pull + " client=",
                                   "pull " + pull + " client=a/b", "pull " + pull + " client=a b",
                                   "pull " + std::string(4097, 'p'),
                                   "pull " + pull + "\xc3\xa4"}) {
    CHECK_THROWS(parse_tokens("file", wrong), std::runtime_error);
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"loopback addresses are local and no others", loopback_addresses_are_local_and_no_others},
      {"tokens have a role and a line", tokens_have_a_role_and_a_line},
  });
}
