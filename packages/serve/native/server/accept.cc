// gRPC accepts connections with this function instead of the one of libc. gRPC 1.51 stops listening if
// accept4 fails because too many files are open (CVE-2023-4785). This function closes such a connection
// at once, so its client can use another replica, and gRPC continues with the next one.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

namespace {

int open_spare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

std::mutex mutex;          // protects `spare`
int spare = open_spare();  // its number is used to accept a connection that is closed at once

int accept_connection(int listening, sockaddr* address, socklen_t* size, int flags) {
  return static_cast<int>(syscall(SYS_accept4, listening, address, size, flags));
}

}  // namespace

extern "C" int accept4(int listening, sockaddr* address, socklen_t* size, int flags) {
  const int connection = accept_connection(listening, address, size, flags);
  const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
  if (connection >= 0 || !is_full) return connection;
  const std::lock_guard<std::mutex> lock(mutex);
  if (spare >= 0) close(spare);
  const int rejected = accept_connection(listening, nullptr, nullptr, flags);
  if (rejected >= 0) close(rejected);
  spare = open_spare();
  // gRPC calls again at once, or when the next connection arrives.
  errno = rejected >= 0 ? EINTR : EAGAIN;
  return -1;
}
