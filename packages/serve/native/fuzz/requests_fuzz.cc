// A libFuzzer target for the native server: any message of any method must be answered or refused.
//
//   first byte, modulo 8   the method: Pull, Scan, Recommend, ReadModel, Describe, ModelInfer,
//                          ModelReady, ModelMetadata
//   remaining bytes        the message
//
// The environment names the library and a folder of serving snapshots, of which this server has the
// first of two shards. Only StatusError may be thrown: the files are intact, and limits are checked
// before memory is allocated. gRPC's own parsing of connections is not part of the target.
// `python -m fuzz` builds and runs it.
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "server/inference.h"
#include "server/lookup_service.h"
#include "server/recommend.h"

using sparring::serve::Inference;
using sparring::serve::LookupService;
using sparring::serve::Recommend;

namespace {

constexpr double kRemainingSeconds = 1.0;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set; run python -m fuzz");
  return value;
}

struct Server {
  Server()
      : settings(make_settings()),
        library(settings.library),
        tables(library, {settings.snapshots, "", true, 2, 0, settings.partition_end, 0, {}}),
        metrics({}, {"0.1", "1"}, tables.served()->names),
        service(settings, tables, metrics) {}

  static sparring::serve::Settings make_settings() {
    sparring::serve::Settings made;
    made.library = variable("SPARRING_FUZZ_LIBRARY");
    made.snapshots = variable("SPARRING_FUZZ_SNAPSHOTS");
    made.max_ids = 4096;
    made.max_tables = 8;
    made.max_bytes = 1 << 20;
    made.max_bytes_in_flight = 4 << 20;
    made.max_deadline_seconds = 10;
    made.max_queries = 16;
    made.max_k = 100;
    made.num_shards = 2;
    made.partition_end = 2048;
    return made;
  }

  const sparring::serve::Settings settings;
  const sparring::serve::PackedLibrary library;
  sparring::serve::ServingTables tables;
  sparring::serve::Metrics metrics;
  LookupService service;
};

void answer(LookupService& service, int method, std::string_view message) {
  const auto now = LookupService::Clock::now();
  switch (method) {
    case 0: service.pull(message, kRemainingSeconds, now); break;
    case 1: service.scan(message, kRemainingSeconds); break;
    case 2: Recommend(service).answer(message, kRemainingSeconds, now); break;
    case 3: service.read_model(message, kRemainingSeconds); break;
    case 4: service.describe(message); break;
    case 5: Inference(service).infer(message, kRemainingSeconds, now); break;
    case 6: Inference(service).model_ready(message); break;
    default: Inference(service).model_metadata(message);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Server server;
  if (size == 0) return 0;
  // A copy of exactly this size, so that AddressSanitizer detects reads beyond its end.
  const std::string message(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    answer(server.service, data[0] % 8, message);
  } catch (const sparring::serve::StatusError&) {
  }
  if (server.service.bytes_in_flight() != 0) {
    throw std::runtime_error("bytes of a call are still counted after it has ended");
  }
  return 0;
}
