// Looks up ids in a serving snapshot, in C++ without Python:
//
//   lookup FOLDER TABLE ID...
//
// For each id, it prints whether the id has a row, and its embedding.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
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

// Ends the program if a call failed.
template <class Arguments>
void check(SparringStatus status, Arguments& arguments) {
  if (status == SPARRING_OK) return;
  std::fprintf(stderr, "%s\n", arguments.call.error.message);
  if (arguments.call.error.release != nullptr) arguments.call.error.release(&arguments.call.error);
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
  if (count < 4) {
    std::fprintf(stderr, "lookup FOLDER TABLE ID...\n");
    return 2;
  }
  auto open = new_arguments<SparringPackedOpen>();
  open.path = words[1];
  check(sparring_packed_open(&open), open);

  auto version = new_arguments<SparringPackedVersion>();
  check(sparring_packed_version(open.packed, &version), version);
  auto table = new_arguments<SparringPackedTable>();
  for (table.table = 0; table.table < version.num_tables; ++table.table) {
    check(sparring_packed_table(open.packed, &table), table);
    if (std::strcmp(table.name, words[2]) == 0) break;
  }
  if (table.table == version.num_tables) {
    std::fprintf(stderr, "there is no table %s\n", words[2]);
    return 1;
  }

  std::vector<int64_t> ids;
  for (int i = 3; i < count; ++i) ids.push_back(parse_id(words[i]));
  std::vector<float> rows(ids.size() * static_cast<size_t>(table.dim));
  std::vector<uint8_t> found(ids.size());
  SparringPackedRequest request{};
  request.table = table.table;
  request.count = static_cast<int64_t>(ids.size());
  request.ids = ids.data();
  request.rows = rows.data();
  request.found = found.data();
  auto lookup = new_arguments<SparringPackedLookup>();
  lookup.num_requests = 1;
  lookup.requests = &request;
  check(sparring_packed_lookup(open.packed, &lookup), lookup);

  std::printf("step %lld\n", static_cast<long long>(lookup.step));
  for (size_t i = 0; i < ids.size(); ++i) {
    std::printf("%lld %d", static_cast<long long>(ids[i]), found[i]);
    for (int32_t column = 0; column < table.dim; ++column) {
      std::printf(" %.9g", static_cast<double>(rows[i * static_cast<size_t>(table.dim) +
                                                    static_cast<size_t>(column)]));
    }
    std::printf("\n");
  }
  sparring_packed_close(open.packed);
  return 0;
}
