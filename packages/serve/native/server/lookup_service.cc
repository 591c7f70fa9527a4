#include "server/lookup_service.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "server/pull.h"
#include "server/reply_buffer.h"
#include "sparring/initial_value.h"
#include "wire/fields.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

constexpr const char* kDtypes[] = {"float32", "float16", "bfloat16", "int8", "int4"};

// gRPC rounds deadlines up by a few percent.
constexpr double kRounding = 1.05;

constexpr size_t kCursorBytes = 16;

}  // namespace

void check_ids(std::string_view ids) {
  if (ids.size() % sizeof(int64_t) == 0) return;
  throw StatusError(StatusCode::INVALID_ARGUMENT,
                    "ids: " + with_commas(ids.size()) +
                        " bytes are not a multiple of 8; send 8 bytes per id",
                    "message");
}

void LookupService::check_deadline(double remaining_seconds) const {
  const double most = settings_.max_deadline_seconds;
  if (!(remaining_seconds <= kRounding * most)) {
    const std::string given =
        remaining_seconds > 1e6 ? "none" : general(remaining_seconds, 3) + " s";
    throw StatusError(StatusCode::INVALID_ARGUMENT,
                      "the call must have a deadline of at most " + general(most) + " s, found " + given +
                          "; set one",
                      "deadline");
  }
  if (remaining_seconds <= 0) {
    throw StatusError(
        StatusCode::DEADLINE_EXCEEDED,
        "the deadline passed before the call began; increase it, or increase server.threads",
        "deadline_exceeded");
  }
}

void LookupService::check_request_bytes(std::string_view content) const {
  const auto size = static_cast<int64_t>(content.size());
  if (size <= settings_.max_bytes) return;
  throw StatusError(StatusCode::INVALID_ARGUMENT,
                    "the request has " + with_commas(size) + " bytes, and the maximum is " +
                        with_commas(settings_.max_bytes) + "; send fewer ids per call",
                    "max_bytes");
}

void LookupService::check_reply_bytes(int64_t num_bytes) const {
  if (num_bytes <= settings_.max_bytes) return;
  throw StatusError(StatusCode::INVALID_ARGUMENT,
                    "the reply would have " + with_commas(num_bytes) + " bytes, and the maximum is " +
                        with_commas(settings_.max_bytes) + "; send fewer ids per call",
                    "max_bytes");
}

std::vector<const TableShape*> LookupService::check_tables(const Served& served,
                                                           const std::vector<TableIds>& asked) const {
  if (!is_ready()) {
    throw StatusError(StatusCode::UNAVAILABLE, "this server is draining; use another replica",
                      "unavailable");
  }
  int64_t num_ids = 0;
  for (const TableIds& each : asked) num_ids += each.count();
  const auto check = [](int64_t found, int64_t most, const char* what) {
    if (found <= most) return;
    throw StatusError(StatusCode::INVALID_ARGUMENT,
                      "the call has " + with_commas(found) + " " + what + ", and the maximum is " +
                          with_commas(most) + "; split it",
                      std::string("max_") + what);
  };
  check(static_cast<int64_t>(asked.size()), settings_.max_tables, "tables");
  check(num_ids, settings_.max_ids, "ids");
  std::set<std::string_view> names;
  for (const TableIds& each : asked) {
    if (asked.size() == 1 || names.insert(each.table).second) continue;
    throw StatusError(StatusCode::INVALID_ARGUMENT,
                      "the call contains a table twice; send all ids of a table together",
                      "repeated_table");
  }
  std::vector<const TableShape*> shapes;
  shapes.reserve(asked.size());
  for (const TableIds& each : asked) {
    const auto found = served.numbers.find(each.table);
    if (found == served.numbers.end()) {
      throw StatusError(StatusCode::NOT_FOUND,
                        "table " + quoted(each.table) + " is not served here; " +
                            suggest(each.table, served.names),
                        "unknown_table");
    }
    shapes.push_back(&served.tables[static_cast<size_t>(found->second)]);
  }
  if (settings_.num_shards > 1) check_partitions(asked);
  return shapes;
}

void LookupService::check_partitions(const std::vector<TableIds>& asked) const {
  for (const TableIds& each : asked) {
    for (size_t at = 0; at < each.ids.size(); at += sizeof(int64_t)) {
      int64_t key;
      std::memcpy(&key, each.ids.data() + at, sizeof key);
      const int partition = partition_of(key);
      if (partition >= settings_.partition_begin && partition < settings_.partition_end) continue;
      throw StatusError(
          StatusCode::FAILED_PRECONDITION,
          "table " + quoted(each.table) + ": key " + std::to_string(key) + " belongs to partition " +
              std::to_string(partition) + ", and shard " + std::to_string(settings_.shard + 1) + " of " +
              std::to_string(settings_.num_shards) + " has the partitions " +
              std::to_string(settings_.partition_begin) + " to " +
              std::to_string(settings_.partition_end - 1) + "; use the attached shard map",
          "foreign_partition", settings_.shard_map);
    }
  }
}

double LookupService::age_of(double published) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(0.0, now.count() - published);
}

void LookupService::refuse(const Served& served, const PackedError& error,
                           std::string_view version) const {
  if (error.status == SPARRING_INVALID_ARGUMENT && !version.empty() &&
      tables_.find_version(served, version).empty()) {
    throw StatusError(StatusCode::NOT_FOUND, "version " + std::string(version) + ": " + error.what(),
                      "version_gone");
  }
  if (error.status == SPARRING_IO || error.status == SPARRING_DEADLINE) {
    throw StatusError(StatusCode::UNAVAILABLE, error.what(), "backend");
  }
  throw error;
}

void LookupService::refuse_argument(const Served& served, const PackedError& error,
                                    const std::string& version) const {
  if (error.status == SPARRING_INVALID_ARGUMENT && !tables_.find_version(served, version).empty()) {
    throw StatusError(StatusCode::INVALID_ARGUMENT, error.what(), "message");
  }
  refuse(served, error, version);
}

Reply LookupService::pull(std::string_view content, double remaining_seconds, Clock::time_point begin) {
  return Pull(*this).answer(content, remaining_seconds, begin);
}

Reply LookupService::scan(std::string_view content, double remaining_seconds) {
  check_deadline(remaining_seconds);
  std::string_view table, version, cursor;
  int64_t max_rows = 0;
  for (FieldReader reader("ScanRequest", content); reader.next();) {
    switch (reader.number()) {
      case 1: table = reader.text("table"); break;
      case 2: version = reader.text("version"); break;
      case 3: max_rows = reader.whole("max_rows"); break;
      case 4: cursor = reader.bytes("cursor"); break;
      default: break;
    }
  }
  const auto served = tables_.served();
  const TableShape& shape = *check_tables(*served, {{table, {}}})[0];
  const int64_t bytes_of_row = 8 + 4 * shape.dim;
  const int64_t capacity = std::min(max_rows, settings_.max_bytes / bytes_of_row);
  if (capacity < 1) {
    throw StatusError(StatusCode::INVALID_ARGUMENT,
                      "max_rows must be at least 1, found " + std::to_string(max_rows) +
                          "; a row has " + with_commas(bytes_of_row) +
                          " bytes, and a reply has at most " + with_commas(settings_.max_bytes),
                      "message");
  }
  Admission::Admitted admitted(admission_, capacity * bytes_of_row);
  if (!cursor.empty() && cursor.size() != kCursorBytes) {
    throw StatusError(StatusCode::INVALID_ARGUMENT,
                      "cursor: found " + std::to_string(cursor.size()) +
                          " bytes, expected the cursor of the previous reply, or an empty one for the "
                          "first chunk",
                      "message");
  }
  const std::string wanted(version.empty() ? std::string_view(served->versions.front().hash) : version);
  ReplyBuffer ids(static_cast<size_t>(8 * capacity));
  ReplyBuffer rows(static_cast<size_t>(4 * shape.dim * capacity));
  auto arguments = arguments_of<SparringPackedScan>();
  arguments.version = wanted.c_str();
  arguments.table = shape.number;
  arguments.capacity = capacity;
  arguments.ids = reinterpret_cast<int64_t*>(ids.data());
  arguments.rows = rows.data();
  if (!cursor.empty()) std::memcpy(arguments.cursor, cursor.data(), cursor.size());
  try {
    tables_.library().scan(served->packed.get(), arguments);
  } catch (const PackedError& error) {
    refuse_argument(*served, error, wanted);
  }
  const auto num_ids = static_cast<size_t>(arguments.count) * 8;
  const auto num_rows = static_cast<size_t>(arguments.count * 4 * shape.dim);
  std::string before_ids, before_rows, tail;
  if (num_ids != 0) {
    FieldWriter(before_ids).begin_bytes(1, num_ids);
    FieldWriter(before_rows).begin_bytes(2, num_rows);
  }
  FieldWriter writer(tail);
  if (arguments.is_done == 0) {
    writer.text(3, {reinterpret_cast<const char*>(arguments.cursor), sizeof arguments.cursor});
  }
  writer.message(4, tables_.find_version(*served, wanted));
  const grpc::Slice slices[] = {before_ids, ids.part(0, num_ids), before_rows, rows.part(0, num_rows),
                                tail};
  return {grpc::ByteBuffer(slices, std::size(slices)), std::move(admitted)};
}

Reply LookupService::read_model(std::string_view content, double remaining_seconds) {
  check_deadline(remaining_seconds);
  std::string_view kind, version;
  int64_t begin = 0, max_bytes = 0;
  for (FieldReader reader("ReadModelRequest", content); reader.next();) {
    switch (reader.number()) {
      case 1: kind = reader.text("kind"); break;
      case 2: version = reader.text("version"); break;
      case 3: begin = reader.whole("begin"); break;
      case 4: max_bytes = reader.whole("max_bytes"); break;
      default: break;
    }
  }
  const auto served = tables_.served();
  check_tables(*served, {});
  const int64_t most = settings_.max_bytes;
  if (max_bytes <= 0 || max_bytes > most) max_bytes = most;
  Admission::Admitted admitted(admission_, kind.empty() ? 0 : max_bytes);
  const std::string wanted(version.empty() ? std::string_view(served->versions.front().hash) : version);
  auto file = arguments_of<SparringPackedModel>();
  file.version = wanted.c_str();
  const auto call = [&] {
    try {
      tables_.library().model(served->packed.get(), file);
    } catch (const PackedError& error) {
      refuse_argument(*served, error, wanted);
    }
  };
  std::string files, kinds;
  int32_t chosen = -1;
  uint64_t size_bytes = 0;
  call();
  for (; file.file < file.num_files; ++file.file) {
    call();
    std::string described;
    FieldWriter fields(described);
    fields.text(1, file.kind);
    fields.whole(2, file.size_bytes);
    fields.text(3, file.hash);
    FieldWriter(files).message(1, described);
    kinds += (kinds.empty() ? "" : ", ") + std::string(file.kind);
    if (kind != file.kind) continue;
    chosen = file.file;
    size_bytes = file.size_bytes;
  }
  if (!kind.empty() && chosen < 0) {
    throw StatusError(StatusCode::INVALID_ARGUMENT,
                      "the version has no file of the model of kind " + quoted(kind) + "; it has " +
                          (kinds.empty() ? "only rows" : kinds),
                      "message");
  }
  file.begin = static_cast<uint64_t>(begin);
  const uint64_t rest = size_bytes - std::min(file.begin, size_bytes);
  file.capacity = std::min(rest, static_cast<uint64_t>(max_bytes));
  ReplyBuffer bytes(file.capacity);
  if (chosen >= 0) {
    file.file = chosen;
    file.bytes = reinterpret_cast<uint8_t*>(bytes.data());
    call();
    if (file.count != 0) FieldWriter(files).begin_bytes(2, file.count);
  }
  std::string tail;
  FieldWriter(tail).message(3, tables_.find_version(*served, wanted));
  const grpc::Slice slices[] = {files, bytes.part(0, file.count), tail};
  return {grpc::ByteBuffer(slices, std::size(slices)), std::move(admitted)};
}

std::string LookupService::describe(std::string_view content) {
  for (FieldReader reader("DescribeRequest", content); reader.next();) continue;
  const auto served = tables_.served();
  std::string reply;
  FieldWriter writer(reply);
  for (const TableShape& each : served->tables) {
    std::string table;
    FieldWriter fields(table);
    fields.text(1, each.name);
    fields.whole(2, static_cast<uint64_t>(each.dim));
    fields.text(3, kDtypes[each.dtype]);
    fields.whole(4, static_cast<uint64_t>(each.num_rows));
    fields.text(5, each.initial);
    writer.message(1, table);
  }
  for (const Version& each : served->versions) writer.message(2, each.encoded);
  writer.real(3, age_of(served->versions.front().published));
  writer.text(4, settings_.shard_map);
  writer.whole(5, static_cast<uint64_t>(settings_.shard));
  writer.whole(6, static_cast<uint64_t>(settings_.max_ids));
  writer.whole(7, static_cast<uint64_t>(settings_.max_bytes));
  writer.real(8, settings_.max_deadline_seconds);
  writer.whole(9, is_ready() ? 1 : 0);
  writer.text(11, served->not_fresh);
  if (!served->gate.encoded.empty()) writer.message(12, served->gate.encoded);
  return reply;
}

}  // namespace sparring::serve
