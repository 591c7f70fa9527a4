// The native server of lookups: sparring-serve-native SETTINGS. `sparring serve` executes it.
#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <future>
#include <string>
#include <string_view>
#include <thread>

#include "server/front_end.h"
#include "server/log.h"
#include "server/settings.h"

namespace {

constexpr int kFailure = 1;
constexpr int kInvalid = 2;

constexpr size_t kMaxFreeBytes = 64 << 20;
constexpr auto kTrimInterval = std::chrono::seconds(5);

// Configures glibc to serve blocks below 2 MiB from few heaps, and to keep 16 MiB of each. Larger blocks
// return to the system when they are freed: the heaps would otherwise keep several times the bytes of the
// largest calls, and exceed max_bytes_in_flight. Replies to 10,000 ids do not cause page faults each time.
// glibc returns only the end of a heap, so one block in use keeps all free memory before it, for example
// after 100,000 calls that were cancelled at once. A thread returns such memory.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 2 << 20);
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
  mallopt(M_ARENA_MAX, 4);
  std::thread([] {
    while (true) {
      std::this_thread::sleep_for(kTrimInterval);
      if (mallinfo2().fordblks > kMaxFreeBytes) malloc_trim(16 << 20);
    }
  }).detach();
}

// SIGTERM or SIGINT, for which a thread waits. Before `is_ready` is set, it ends the process at once,
// because loading tables may take minutes and has nothing to complete. Exists once, and until the end of
// the process.
struct StopSignal {
  std::atomic<bool> is_ready{false};
  std::promise<void> arrived;

  // Blocks the signals in this thread and in those that it starts later, and waits for them in another.
  void listen() {
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stops, nullptr);
    std::thread([this, stops] {
      int signal = 0;
      sigwait(&stops, &signal);
      if (is_ready) {
        arrived.set_value();
        return;
      }
      log(sparring::serve::LogLevel::kInfo, "the server has ended while it was loading tables");
      _exit(0);
    }).detach();
  }
};

StopSignal stop_signal;

// Returns the name and the number of the loaded library, such as "OpenSSL 3.0.17".
std::string openssl_name() {
  return std::string("OpenSSL ") + OpenSSL_version(OPENSSL_VERSION_STRING);
}

}  // namespace

int main(int argc, char** argv) {
  using sparring::serve::LogLevel;
  if (argc != 2) {
    std::fprintf(stderr, "error: expected the path of the settings; start it with sparring serve\n");
    return kInvalid;
  }
  // A start that only tests whether the libraries of this program are installed, and prints their versions.
  if (argv[1] == std::string_view("--check")) {
    std::printf("gRPC %s and %s\n", grpc::Version().c_str(), openssl_name().c_str());
    return 0;
  }
  stop_signal.listen();  // first, because later threads inherit the blocked signals
  keep_freed_memory();
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const auto settings = sparring::serve::read_settings(argv[1]);
    sparring::serve::set_log_level(settings.log_level);
    sparring::serve::FrontEnd front_end(settings);
    stop_signal.is_ready = true;
    log(LogLevel::kInfo, front_end.ready_line());
    stop_signal.arrived.get_future().wait();
    log(LogLevel::kInfo, "draining: new calls are rejected, calls in progress are completed");
    front_end.close();
    log(LogLevel::kInfo, "all calls were completed, the server has ended");
    // Without destructors: after large replies, gRPC's would wait 10 s for a thread that polls sockets.
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kFailure;
  }
}
