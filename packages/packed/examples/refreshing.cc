// Looks up ids in a served folder and switches to newer versions while it runs, in C++ without Python:
//
//   refreshing FOLDER TABLE SECONDS
//
// It reads ids from standard input, one per line, and prints the step of the version and the first
// element of the row. A separate thread searches for a newer version every SECONDS. If a version is
// invalid, it prints the error to standard error, and the previous version remains in use.
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "sparring_packed.h"

namespace {

template <class Arguments>
Arguments new_arguments() {
  Arguments arguments{};
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device.type = 1;  // the CPU
  return arguments;
}

// Returns the message of a failed call, or an empty string.
template <class Arguments>
std::string failure(SparringStatus status, Arguments& arguments) {
  if (status == SPARRING_OK) return "";
  const std::string message = arguments.call.error.message;
  if (arguments.call.error.release != nullptr) arguments.call.error.release(&arguments.call.error);
  return message;
}

template <class Arguments>
void check(SparringStatus status, Arguments& arguments) {
  const std::string message = failure(status, arguments);
  if (message.empty()) return;
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

// Searches for newer versions until it is destroyed.
class Refresher {
 public:
  Refresher(SparringPacked* packed, double seconds)
      : packed_(packed), pause_(seconds), thread_([this] { run(); }) {}

  ~Refresher() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    over_.notify_one();
    thread_.join();
  }

 private:
  void run() {
    std::string last;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!over_.wait_for(lock, pause_, [this] { return is_over_; })) {
      auto refresh = new_arguments<SparringPackedRefresh>();
      const std::string refused = failure(sparring_packed_refresh(packed_, &refresh), refresh);
      if (!refused.empty() && refused != last) std::fprintf(stderr, "refused: %s\n", refused.c_str());
      last = refused;
    }
  }

  SparringPacked* const packed_;
  const std::chrono::duration<double> pause_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;
};

// Number and dim of a table.
SparringPackedTable table_named(SparringPacked* packed, const char* name) {
  auto version = new_arguments<SparringPackedVersion>();
  check(sparring_packed_version(packed, &version), version);
  auto table = new_arguments<SparringPackedTable>();
  for (table.table = 0; table.table < version.num_tables; ++table.table) {
    check(sparring_packed_table(packed, &table), table);
    if (std::strcmp(table.name, name) == 0) return table;
  }
  std::fprintf(stderr, "there is no table %s\n", name);
  std::exit(1);
}

// Returns the id in `text`, or ends the program: an id is a decimal number of 64 bits with a sign, and
// ids from 2^63 on, which were unsigned, are written as id - 2^64.
int64_t parse_id(std::string_view text) {
  int64_t id = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, id);
  if (error == std::errc{} && parsed == end) return id;
  std::fprintf(stderr, "found id \"%.*s\", expected an integer from -2^63 to 2^63 - 1\n",
               static_cast<int>(text.size()), text.data());
  std::exit(2);
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) {
    std::fprintf(stderr, "refreshing FOLDER TABLE SECONDS\n");
    return 2;
  }
  auto open = new_arguments<SparringPackedOpen>();
  open.path = words[1];
  check(sparring_packed_open(&open), open);
  const SparringPackedTable table = table_named(open.packed, words[2]);
  {
    const Refresher refresher(open.packed, std::strtod(words[3], nullptr));
    std::vector<float> row(static_cast<size_t>(table.dim));
    char line[64];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
      std::string_view text = line;
      if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
      const int64_t id = parse_id(text);
      SparringPackedRequest request{};
      request.table = table.table;
      request.count = 1;
      request.ids = &id;
      request.rows = row.data();
      auto lookup = new_arguments<SparringPackedLookup>();
      lookup.num_requests = 1;
      lookup.requests = &request;
      check(sparring_packed_lookup(open.packed, &lookup), lookup);
      std::printf("%lld %.9g\n", static_cast<long long>(lookup.step), static_cast<double>(row[0]));
      std::fflush(stdout);
    }
  }
  sparring_packed_close(open.packed);
  return 0;
}
