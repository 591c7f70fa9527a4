#include "server/open_calls.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>

#include "server/log.h"

namespace sparring::serve {

namespace {

// Returns the address of the other side as gRPC writes it; empty if the file is not a connection over TCP.
std::string peer_of(int descriptor) {
  sockaddr_in6 found = {};
  socklen_t size = sizeof found;
  auto* const address = reinterpret_cast<sockaddr*>(&found);
  if (getpeername(descriptor, address, &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    const auto* const plain = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &plain->sin_addr, text, sizeof text);
    return std::string("ipv4:") + text + ":" + std::to_string(ntohs(plain->sin_port));
  }
  if (address->sa_family != AF_INET6) return "";
  const std::string port = ":" + std::to_string(ntohs(found.sin6_port));
  if (IN6_IS_ADDR_V4MAPPED(&found.sin6_addr)) {
    inet_ntop(AF_INET, &found.sin6_addr.s6_addr[12], text, sizeof text);
    return std::string("ipv4:") + text + port;
  }
  inet_ntop(AF_INET6, &found.sin6_addr, text, sizeof text);
  return std::string("ipv6:%5B") + text + "%5D" + port;
}

// gRPC has no function that closes a connection, and does not tell its descriptor.
void close_connection(const std::string& peer) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder.get())) {
    const int descriptor = std::atoi(entry->d_name);
    if (descriptor > 2 && peer_of(descriptor) == peer) shutdown(descriptor, SHUT_RDWR);
  }
}

}  // namespace

void OpenCalls::enter(const std::string& peer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Equal, so that a connection is closed once.
    if (++counts_[peer] != kMaxPerConnection) return;
  }
  close_connection(peer);
  log(LogLevel::kWarning, "the connection of " + peer + " was closed: it has " +
                              std::to_string(kMaxPerConnection) + " open calls, most of which it cancelled at once");
}

void OpenCalls::leave(const std::string& peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = counts_.find(peer);
  if (--found->second == 0) counts_.erase(found);
}

}  // namespace sparring::serve
