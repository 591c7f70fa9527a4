#include "server/pull.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/reply_buffer.h"
#include "tables/row_formats.h"
#include "wire/fields.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

// Room for the fields after the tables: a version, an age and a hash.
constexpr size_t kTail = 192;

// Larger buffers of a thread are released after the call.
constexpr size_t kKeptBytes = 1 << 20;

// Buffers of a thread, which are used again by its next calls.
struct Scratch {
  std::vector<uint8_t> found;
  std::vector<float> rows;
  std::vector<int64_t> ids;

  void trim() {
    if (found.capacity() > kKeptBytes) found = {};
    if (rows.capacity() > kKeptBytes / sizeof(float)) rows = {};
    if (ids.capacity() > kKeptBytes / sizeof(int64_t)) ids = {};
  }
};

thread_local Scratch scratch;

// Releases large buffers at the end of a call, also of one that fails.
struct Trim {
  ~Trim() { scratch.trim(); }
};

}  // namespace

void Pull::parse(std::string_view content) {
  for (FieldReader reader("PullRequest", content); reader.next();) {
    switch (reader.number()) {
      case 1: {
        TableIds table;
        for (FieldReader fields("TableIds", reader.bytes("tables")); fields.next();) {
          if (fields.number() == 1) table.table = fields.text("table");
          if (fields.number() == 2) table.ids = fields.bytes("ids");
        }
        asked_.push_back(table);
        break;
      }
      case 2: row_dtype_ = reader.whole("row_dtype"); break;
      case 3: missing_ = reader.whole("missing"); break;
      case 4: version_ = reader.text("version"); break;
      case 5: max_staleness_seconds_ = reader.real("max_staleness_seconds"); break;
      case 6: reader.flag("accepts_partial"); break;  // rows of files are always read
      case 7: reader.text("request_id"); break;
      case 8: {
        // The writer of the log reads samples; their fields are checked as in Python.
        for (FieldReader fields("SampleColumn", reader.bytes("sample")); fields.next();) {
          if (fields.number() == 1) fields.text("name");
          if (fields.number() == 2) fields.bytes("ids");
          if (fields.number() == 3) fields.bytes("numbers");
          if (fields.number() == 4) fields.bytes("lengths");
        }
        break;
      }
      case 9: reader.whole("epoch"); break;
      default: break;
    }
  }
  is_parsed_ = true;
}

void Pull::check_choice(int64_t value, const char* name, const std::vector<const char*>& known) const {
  if (value >= 0 && value < static_cast<int64_t>(known.size())) return;
  std::string listed;
  for (size_t i = 0; i < known.size(); ++i) {
    listed += (i == 0 ? "" : ", ") + std::string(known[i]) + " " + std::to_string(i);
  }
  throw StatusError(StatusCode::INVALID_ARGUMENT,
                    std::string(name) + " " + std::to_string(value) + " is unknown to this server, " +
                        service_.settings().release + ", which supports " + listed +
                        "; the caller is newer: use a supported value, or upgrade the server",
                    "invalid_argument");
}

Reply Pull::answer(std::string_view content, double remaining_seconds,
                   LookupService::Clock::time_point begin) {
  return counted(
      service_.metrics(), [&] { return answer(content, remaining_seconds); },
      [&](StatusCode code) { count(code, begin); });
}

void Pull::count(StatusCode code, LookupService::Clock::time_point begin) {
  Metrics& metrics = service_.metrics();
  const auto served = service_.tables().served();
  bool has_unknown = !is_parsed_ || asked_.empty();
  std::vector<int> counted;  // a table that is requested twice is counted once
  for (const TableIds& each : asked_) {
    const auto found = served->numbers.find(each.table);
    if (!is_parsed_ || found == served->numbers.end()) {
      has_unknown = true;
    } else if (code == StatusCode::OK ||
               std::find(counted.begin(), counted.end(), found->second) == counted.end()) {
      metrics.pulls.note(found->second, code);
      if (code != StatusCode::OK) counted.push_back(found->second);
    }
  }
  if (has_unknown) metrics.pulls.note(-1, code);
  metrics.ids += num_ids_;
  Quotas::charge(num_ids_);
  metrics.found += num_found_;
  metrics.pulls.observe(std::chrono::duration<double>(LookupService::Clock::now() - begin).count());
}

SparringPackedLookup Pull::look_up(const Served& served, std::vector<SparringPackedRequest>& requests,
                                   int32_t dtype) {
  const std::string version(version_);
  auto arguments = arguments_of<SparringPackedLookup>();
  arguments.dtype = dtype;
  arguments.missing = missing_ == kInitial ? SPARRING_PACKED_INITIAL : SPARRING_PACKED_ZEROS;
  arguments.version = version.empty() ? nullptr : version.c_str();
  arguments.num_requests = static_cast<int64_t>(requests.size());
  arguments.requests = requests.data();
  try {
    service_.tables().library().lookup(served.packed.get(), arguments);
  } catch (const PackedError& error) {
    service_.refuse(served, error, version_);
  }
  return arguments;
}

Reply Pull::answer(std::string_view content, double remaining_seconds) {
  service_.check_deadline(remaining_seconds);
  service_.check_request_bytes(content);
  parse(content);
  for (const TableIds& each : asked_) check_ids(each.ids);
  for (const TableIds& each : asked_) num_ids_ += each.count();
  check_choice(row_dtype_, "row_dtype", {"FLOAT32", "FLOAT16", "INT8"});
  check_choice(missing_, "missing", {"INITIAL", "ZERO", "ONLY_FOUND"});
  ServingTables& tables = service_.tables();
  const auto served = tables.served();
  const std::vector<const TableShape*> shapes = service_.check_tables(*served, asked_);
  int64_t reply_bytes = 0;
  bool are_int8 = row_dtype_ == kInt8;
  for (size_t i = 0; i < asked_.size(); ++i) {
    reply_bytes += asked_[i].count() * (encoded_row_bytes(shapes[i]->dim, row_dtype_) + 1);
    are_int8 = are_int8 && shapes[i]->dtype == SPARRING_PACKED_INT8;
  }
  service_.check_reply_bytes(reply_bytes);
  Admission::Admitted admitted(service_.admission(), static_cast<int64_t>(content.size()) + reply_bytes);

  // Rows as the library returns them are the rows of the reply, or are encoded from `scratch.rows`.
  const bool is_direct = missing_ != kOnlyFound && (row_dtype_ == kFloat32 || are_int8);
  const auto library_row_bytes = [&](size_t i) {
    return are_int8 ? shapes[i]->row_bytes : int64_t{4} * shapes[i]->dim;
  };
  const Trim trim;
  scratch.found.resize(static_cast<size_t>(num_ids_) + 8);
  const auto scratch_floats = [&](size_t i) { return (asked_[i].count() * library_row_bytes(i) + 3) / 4; };
  if (!is_direct) {
    int64_t num_floats = 0;
    for (size_t i = 0; i < asked_.size(); ++i) num_floats += scratch_floats(i);
    scratch.rows.resize(static_cast<size_t>(num_floats));
  }
  std::vector<SparringPackedRequest> requests(asked_.size());
  // Ids of tables whose bytes are not aligned; gRPC's buffers start at any address.
  int64_t num_copied = 0;
  for (const TableIds& each : asked_) {
    num_copied += reinterpret_cast<uintptr_t>(each.ids.data()) % alignof(int64_t) != 0 ? each.count() : 0;
  }
  scratch.ids.resize(static_cast<size_t>(num_copied));
  int64_t* copied = scratch.ids.data();
  uint8_t* found = scratch.found.data();
  float* read = scratch.rows.data();
  for (size_t i = 0; i < asked_.size(); ++i) {
    const TableIds& each = asked_[i];
    SparringPackedRequest& request = requests[i];
    request.table = shapes[i]->number;
    request.count = each.count();
    if (reinterpret_cast<uintptr_t>(each.ids.data()) % alignof(int64_t) == 0) {
      request.ids = reinterpret_cast<const int64_t*>(each.ids.data());
    } else {
      std::memcpy(copied, each.ids.data(), each.ids.size());
      request.ids = copied;
      copied += request.count;
    }
    request.found = found;
    found += request.count;
    if (!is_direct) {
      request.rows = read;
      read += scratch_floats(i);
    }
    if (tables.notes_ids()) tables.note(request.table, request.ids, request.count);
  }
  const int32_t dtype = are_int8 ? SPARRING_PACKED_STORED : SPARRING_PACKED_FLOAT32;
  SparringPackedLookup looked{};
  if (!is_direct) looked = look_up(*served, requests, dtype);

  // Sizes of the reply.
  struct Part {
    std::string header;
    size_t rows_at;
    size_t rows_bytes;
    size_t found_bytes;
  };
  std::vector<Part> parts(asked_.size());
  size_t size = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    int64_t num_rows = asked_[i].count();
    if (missing_ == kOnlyFound) {
      num_rows = std::count(requests[i].found, requests[i].found + num_rows, uint8_t{1});
    }
    part.rows_bytes = static_cast<size_t>(num_rows * encoded_row_bytes(shapes[i]->dim, row_dtype_));
    part.found_bytes = static_cast<size_t>(asked_[i].count() + 7) / 8;
    std::string fields;
    FieldWriter writer(fields);
    writer.text(1, shapes[i]->name);
    writer.whole(2, static_cast<uint64_t>(shapes[i]->dim));
    if (part.rows_bytes != 0) writer.begin_bytes(3, part.rows_bytes);
    const size_t found_field =
        part.found_bytes == 0 ? 0 : 1 + varint_bytes(part.found_bytes) + part.found_bytes;
    FieldWriter(part.header).begin_bytes(1, fields.size() + part.rows_bytes + found_field);
    part.header += fields;
    part.rows_at = ReplyBuffer::rounded(size + part.header.size());
    size = part.rows_at + part.rows_bytes + found_field;
  }
  ReplyBuffer buffer(size + kTail);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    char* const rows = buffer.data() + part.rows_at;
    std::memcpy(rows - part.header.size(), part.header.data(), part.header.size());
    if (is_direct) {
      requests[i].rows = rows;
      continue;
    }
    char* const all = static_cast<char*>(requests[i].rows);
    int64_t num_rows = requests[i].count;
    if (missing_ == kOnlyFound) {
      const int64_t stride = library_row_bytes(i);
      num_rows = 0;
      for (int64_t id = 0; id < requests[i].count; ++id) {
        if (requests[i].found[id] == 0) continue;
        std::memmove(all + num_rows++ * stride, all + id * stride, static_cast<size_t>(stride));
      }
    }
    if (are_int8) {
      if (part.rows_bytes != 0) std::memcpy(rows, all, part.rows_bytes);
    } else {
      encode_rows(static_cast<const float*>(requests[i].rows), num_rows, shapes[i]->dim, row_dtype_, rows);
    }
  }
  if (is_direct) looked = look_up(*served, requests, dtype);
  const double age = LookupService::age_of(looked.published);
  if (max_staleness_seconds_ > 0 && age > max_staleness_seconds_) {
    throw StatusError(StatusCode::FAILED_PRECONDITION,
                      "rows are " + general(age, 3) + " s old, and max_staleness_seconds is " +
                          general(max_staleness_seconds_, 3) +
                          "; check that versions are still published, or increase max_staleness_seconds",
                      "stale");
  }
  service_.request_log().note(LoggedKind::kPull, looked.hash, content);

  std::vector<grpc::Slice> slices;
  slices.reserve(parts.size() + 1);
  std::string tail;
  {
    std::string version;
    FieldWriter version_writer(version);
    version_writer.whole(2, static_cast<uint64_t>(looked.step));
    version_writer.text(3, looked.hash);
    FieldWriter writer(tail);
    writer.message(2, version);
    writer.real(3, age);
    writer.text(4, tables.served()->versions.front().hash);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    size_t at = part.rows_at + part.rows_bytes;
    if (part.found_bytes != 0) {
      std::string header;
      FieldWriter(header).begin_bytes(4, part.found_bytes);
      std::memcpy(buffer.data() + at, header.data(), header.size());
      at += header.size();
      num_found_ += pack_found(requests[i].found, requests[i].count, buffer.data() + at);
      at += part.found_bytes;
    }
    if (i + 1 == parts.size()) {
      std::memcpy(buffer.data() + at, tail.data(), tail.size());
      at += tail.size();
    }
    slices.push_back(buffer.part(part.rows_at - part.header.size(), at));
  }
  if (parts.empty()) slices.emplace_back(tail);
  return {grpc::ByteBuffer(slices.data(), slices.size()), std::move(admitted)};
}

}  // namespace sparring::serve
