// The native server of lookups: sparring-serve-native SETTINGS. `sparring serve` executes it.
#include <malloc.h>
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <string_view>

#include "server/front_end.h"
#include "server/log.h"
#include "server/settings.h"

namespace {

constexpr int kFailure = 1;
constexpr int kInvalid = 2;

// Configures glibc to serve large blocks from its heap, and to keep up to 256 MiB of it, so that large
// replies do not cause page faults each time.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_ARENA_MAX, 4);
}

}  // namespace

int main(int argc, char** argv) {
  using sparring::serve::LogLevel;
  if (argc != 2) {
    std::fprintf(stderr, "error: expected the path of the settings; start it with sparring serve\n");
    return kInvalid;
  }
  // A start that only tests whether the libraries of this program are installed.
  if (argv[1] == std::string_view("--check")) return 0;
  keep_freed_memory();
  // All threads inherit this, and `sigwait` receives the signals.
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGTERM);
  sigaddset(&stops, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const auto settings = sparring::serve::read_settings(argv[1]);
    sparring::serve::set_log_level(settings.log_level);
    sparring::serve::FrontEnd front_end(settings);
    log(LogLevel::kInfo, front_end.ready_line());
    int signal = 0;
    sigwait(&stops, &signal);
    log(LogLevel::kInfo, "draining: new calls are rejected, calls in progress are completed");
    front_end.close();
    log(LogLevel::kInfo, "all calls were completed, the server has ended");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kFailure;
  }
}
