// Implements the C functions of sparring_packed.h.
#include "sparring_packed.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "format/gate.h"
#include "reader/chain.h"
#include "reader/counted_state.h"
#include "reader/lookup.h"
#include "reader/version.h"
#include "rows/select.h"
#include "rows/simd.h"
#include "sparring/hash_string.h"
#include "sparring/storage_border.h"
#include "writer/pack.h"

using sparring::border::check_given;
using sparring::border::refuse;
using sparring::border::StatusError;
using namespace sparring::packed;  // the functions below are C functions outside of a namespace

// Number of ids to look up before files are read ahead: for so few, single pages are faster.
constexpr int64_t kSingleReads = 256;

// Open tables. `state`, the versions that are kept, is used by readers.
struct SparringPacked {
  struct State {
    Versions versions;  // newest first
  };

  CountedState<State> state;
  std::mutex refreshing;  // protects the members below
  std::string path;
  LoadOptions options;
  size_t keep_versions;
  std::vector<std::string> names;  // names of tables by number
  std::atomic<int64_t> single_reads{kSingleReads};  // ids until files are read ahead; 0 after that
};

namespace {

using Hold = CountedState<SparringPacked::State>::Hold;

// Below this average number of ids per request, memory latency is not hidden within a request.
constexpr int64_t kFewIds = 8;

// Number of rows that a scan converts per step.
constexpr int64_t kWidened = 64;

constexpr char kOutOfMemory[] = "out of memory; nothing was changed";

// Size of a struct without the members that were appended in later releases, which callers may not know.
template <class Arguments>
constexpr size_t kLeastBytes = sizeof(Arguments);
template <>
constexpr size_t kLeastBytes<SparringPackedVersion> = offsetof(SparringPackedVersion, generation);

template <class Arguments, class Body>
SparringStatus guard(Arguments* arguments, const Body& body) {
  if (arguments == nullptr) return SPARRING_INVALID_ARGUMENT;
  return sparring::border::guard(arguments->call, kOutOfMemory, [&] {
    sparring::border::check(arguments->call.struct_bytes >= kLeastBytes<Arguments>,
                            "call.struct_bytes must be the size of the struct",
                            arguments->call.struct_bytes);
    sparring::border::check_is_cpu(arguments->call.device);
    body();
  });
}

template <class Arguments, class Body>
SparringStatus guard_open(SparringPacked* packed, Arguments* arguments, const Body& body) {
  return guard(arguments, [&] {
    check_given(packed != nullptr, "packed");
    body();
  });
}

bool verifies_all(int32_t verify) {
  sparring::border::check(
      verify == SPARRING_PACKED_VERIFY_ALL || verify == SPARRING_PACKED_VERIFY_OPEN,
      "verify must be SPARRING_PACKED_VERIFY_ALL or _OPEN", verify);
  return verify == SPARRING_PACKED_VERIFY_ALL;
}

Partitions partitions_of(const SparringPackedOpen& arguments) {
  if (arguments.partition_begin == 0 && arguments.partition_end == 0) return {};
  if (arguments.partition_begin < 0 || arguments.partition_begin >= arguments.partition_end ||
      arguments.partition_end > sparring::kNumPartitions) {
    refuse("partitions must be a range within [0, 4096); found [" +
           std::to_string(arguments.partition_begin) + ", " +
           std::to_string(arguments.partition_end) + ")");
  }
  return {arguments.partition_begin, arguments.partition_end};
}

// Adds `version` as the newest one, and removes versions that are no longer kept.
void keep(SparringPacked& packed, std::shared_ptr<const Version> version, const Versions& others) {
  auto state = std::make_unique<SparringPacked::State>();
  state->versions.push_back(std::move(version));
  for (const auto& other : others) {
    if (state->versions.size() == packed.keep_versions) break;
    if (other != state->versions.front()) state->versions.push_back(other);
  }
  packed.state.store(std::move(state));
}

// Numbers of tables and sizes of rows must not change, because callers have allocated buffers for them.
void check_same_tables(const Version& newer, const Version& older) {
  const auto described = [](const Version& version) {
    std::string text;
    for (const Table& table : version.tables) {
      text += (text.empty() ? "" : ", ") + table.entry.name + " (dim " +
              std::to_string(table.entry.dim) + ", " + std::string(kDtypeNames[table.entry.dtype]) +
              ")";
    }
    return text;
  };
  if (described(newer) != described(older)) {
    refuse("serving snapshot " + newer.layers.front()->name + " has tables " + described(newer) +
           ", but the open tables are " + described(older) + "; close them, and open the new snapshot");
  }
}

const Version& named_version(const SparringPacked::State& state, const char* hash) {
  if (hash == nullptr) return *state.versions.front();
  std::string kept;
  for (const auto& version : state.versions) {
    if (version->manifest().hash == hash) return *version;
    kept += (kept.empty() ? "" : ", ") + version->manifest().hash;
  }
  refuse("version " + std::string(hash).substr(0, 40) +
         " is not kept; request one of the kept versions " + kept);
}

const Table& numbered_table(const Version& version, int32_t table) {
  if (table < 0 || static_cast<size_t>(table) >= version.tables.size()) {
    refuse("table must be from 0 to " + std::to_string(version.tables.size() - 1) + "; found " +
           std::to_string(table));
  }
  return version.tables[static_cast<size_t>(table)];
}

void check_dtype(int32_t dtype) {
  sparring::border::check(dtype == SPARRING_PACKED_FLOAT32 || dtype == SPARRING_PACKED_STORED,
                          "dtype of rows must be SPARRING_PACKED_FLOAT32 or _STORED", dtype);
}

void check_request(const SparringPackedRequest& request, const Table& table, int32_t dtype) {
  sparring::border::check_count(request.count);
  sparring::border::check_array(request.ids, request.count, "ids");
  const auto bytes = static_cast<uint64_t>(
      dtype == SPARRING_PACKED_STORED ? table.row_bytes : 4 * table.entry.dim);
  if (request.row_stride != 0 && request.row_stride < bytes) {
    refuse("row_stride must be at least the " + std::to_string(bytes) + " bytes of a row of table " +
           table.entry.name + "; found " + std::to_string(request.row_stride));
  }
}

void check_bags(const SparringPackedRequest& request, const Table& table) {
  sparring::border::check_count(request.num_bags, "num_bags");
  sparring::border::check_array(request.rows, request.num_bags, "rows");
  check_given(request.offsets != nullptr, "offsets");
  const std::string& name = table.entry.name;
  if (request.row_stride % sizeof(float) != 0) {
    refuse("row_stride must be a multiple of 4 for sums; found " + std::to_string(request.row_stride));
  }
  if (request.offsets[0] != 0 || request.offsets[request.num_bags] != request.count) {
    refuse("offsets of table " + name + " must go from 0 to " + std::to_string(request.count) +
           "; found " + std::to_string(request.offsets[0]) + " to " +
           std::to_string(request.offsets[request.num_bags]));
  }
  for (int64_t bag = 0; bag < request.num_bags; ++bag) {
    if (request.offsets[bag] > request.offsets[bag + 1]) {
      refuse("offsets of table " + name + " decrease at bag " + std::to_string(bag));
    }
  }
}

// Counts ids to be read. After many ids, files are read ahead.
void note_reads(SparringPacked& packed, const SparringPacked::State& state, int64_t num_ids) {
  const int64_t left = packed.single_reads.load(std::memory_order_relaxed);
  if (left == 0) return;
  packed.single_reads.store(std::max<int64_t>(left - num_ids, 0), std::memory_order_relaxed);
  if (left > num_ids) return;
  for (const auto& version : state.versions) {
    for (const auto& layer : version->layers) layer->read_ahead();
  }
}

void note_version(SparringPackedLookup& arguments, const Version& version) {
  arguments.step = version.manifest().step;
  arguments.published = version.manifest().published;
  std::memcpy(arguments.hash, version.manifest().hash.c_str(), sizeof arguments.hash);
}

// Runs `answer` for each request of a call on the same version.
template <class Answer>
void answer_all(SparringPacked& packed, SparringPackedLookup& arguments, bool are_sums,
                const Answer& answer) {
  sparring::border::check_count(arguments.num_requests, "num_requests");
  sparring::border::check_array(arguments.requests, arguments.num_requests, "requests");
  check_dtype(are_sums ? SPARRING_PACKED_FLOAT32 : arguments.dtype);
  sparring::border::check(
      arguments.missing == SPARRING_PACKED_INITIAL || arguments.missing == SPARRING_PACKED_ZEROS,
      "missing must be SPARRING_PACKED_INITIAL or _ZEROS", arguments.missing);
  const LookupOptions options{arguments.call.executor,
                              are_sums ? SPARRING_PACKED_FLOAT32 : arguments.dtype,
                              arguments.missing};
  const Hold state(packed.state);
  const Version& version = named_version(*state, arguments.version);
  const auto for_requests = [&](const auto& body) {
    for (int64_t i = 0; i < arguments.num_requests; ++i) body(arguments.requests[i]);
  };
  int64_t num_ids = 0;
  for_requests([&](const SparringPackedRequest& request) {
    const Table& table = numbered_table(version, request.table);
    check_request(request, table, options.dtype);
    num_ids += request.count;
    if (are_sums) {
      check_bags(request, table);
    } else {
      sparring::border::check_array(request.rows, request.count, "rows");
    }
  });
  note_reads(packed, *state, num_ids);
  if (arguments.num_requests > 1 && num_ids <= kFewIds * arguments.num_requests) {
    // Their memory reads overlap.
    for_requests([&](const SparringPackedRequest& each) { prefetch_buckets(version, each); });
    for_requests([&](const SparringPackedRequest& each) { prefetch_records(version, each); });
  }
  for_requests([&](const SparringPackedRequest& each) { answer(version, options, each); });
  note_version(arguments, version);
}

// Describes a file of the model, and reads a part of it.
void read_model(const Version& version, SparringPackedModel& arguments) {
  const Layer& layer = *version.layers.front();  // each layer contains all files of the model
  arguments.num_files = static_cast<int32_t>(layer.model.size());
  arguments.count = 0;
  if (arguments.num_files == 0) return;
  sparring::border::check(arguments.file >= 0 && arguments.file < arguments.num_files,
                          "file must be below the number of files of the model", arguments.file);
  const ModelEntry& entry = layer.manifest.model[static_cast<size_t>(arguments.file)];
  const MappedFile& file = *layer.model[static_cast<size_t>(arguments.file)];
  if (arguments.begin > file.size()) {
    refuse("begin must be at most the " + std::to_string(file.size()) + " bytes of " + entry.name +
           "; found " + std::to_string(arguments.begin));
  }
  if (arguments.bytes != nullptr) {
    arguments.count = std::min(arguments.capacity, file.size() - arguments.begin);
    std::memcpy(arguments.bytes, file.data() + arguments.begin, arguments.count);
  }
  arguments.size_bytes = file.size();
  std::snprintf(arguments.kind, sizeof arguments.kind, "%s", entry.kind.c_str());
  std::snprintf(arguments.name, sizeof arguments.name, "%s", entry.name.c_str());
  std::snprintf(arguments.hash, sizeof arguments.hash, "%s", entry.hash.c_str());
  arguments.step = version.manifest().step;
  std::snprintf(arguments.version_hash, sizeof arguments.version_hash, "%s",
                version.manifest().hash.c_str());
}

void widen_rows(const SparringPackedWiden& arguments) {
  sparring::border::check_count(arguments.count);
  sparring::border::check(is_dtype(arguments.dtype), "dtype must be a stored one, 0 to 4", arguments.dtype);
  sparring::border::check(arguments.dim >= 1, "dim must be at least 1", arguments.dim);
  sparring::border::check_array(arguments.rows, arguments.count, "rows");
  sparring::border::check_array(arguments.out, arguments.count, "out");
  const int64_t dim = arguments.dim;
  const int64_t row_bytes = row_bytes_of(arguments.dtype, dim);
  if (arguments.num_bytes / static_cast<uint64_t>(row_bytes) != static_cast<uint64_t>(arguments.count) ||
      arguments.num_bytes % static_cast<uint64_t>(row_bytes) != 0) {
    refuse(std::to_string(arguments.count) + " rows of dim " + std::to_string(dim) + " as " +
           std::string(kDtypeNames[arguments.dtype]) + " have " + std::to_string(row_bytes) +
           " bytes each; found " + std::to_string(arguments.num_bytes) + " bytes");
  }
  const auto widen = row_loops().widen[arguments.dtype];
  const auto* const first = static_cast<const uint8_t*>(arguments.rows);
  constexpr int64_t kGroup = 256;
  const void* rows[kGroup];
  for (int64_t at = 0; at < arguments.count; at += kGroup) {
    const int64_t count = std::min(kGroup, arguments.count - at);
    for (int64_t i = 0; i < count; ++i) rows[i] = first + (at + i) * row_bytes;
    widen({rows, count, dim, arguments.out + at * dim, dim, false});
  }
}

// Reads one chunk of a scan. The cursor contains layer and file, and the record.
void scan(const Version& version, SparringPackedScan& arguments) {
  const Table& table = numbered_table(version, arguments.table);
  const auto stride = static_cast<uint64_t>(
      arguments.dtype == SPARRING_PACKED_STORED ? table.row_bytes : 4 * table.entry.dim);
  arguments.count = 0;
  arguments.is_done = 0;
  uint64_t layer = arguments.cursor[0] >> 32;
  uint64_t place = arguments.cursor[0] & 0xffffffffu;
  uint64_t record = arguments.cursor[1];
  // Rows are converted in steps; the first `num_written` of the counted rows are done.
  const void* found_rows[kWidened];
  int64_t num_written = 0;
  const auto write_found = [&] {
    char* const out = static_cast<char*>(arguments.rows) + static_cast<uint64_t>(num_written) * stride;
    const int64_t count = arguments.count - num_written;
    num_written = arguments.count;
    if (arguments.rows == nullptr) return;
    if (arguments.dtype == SPARRING_PACKED_FLOAT32) {
      row_loops().widen[table.entry.dtype](
          {found_rows, count, table.entry.dim, reinterpret_cast<float*>(out), table.entry.dim, false});
    } else {
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(out + static_cast<uint64_t>(i) * stride, found_rows[i], stride);
      }
    }
  };
  for (; layer < table.layers.size(); ++layer, place = 0) {
    const auto& files = table.layers[layer]->rows.files();
    for (; place < files.size(); ++place, record = 0) {
      const PackedFile& file = *files[place];
      for (; record < file.num_keys(); ++record) {
        if (arguments.count == arguments.capacity) {
          arguments.cursor[0] = layer << 32 | place;
          arguments.cursor[1] = record;
          write_found();
          return;
        }
        const uint8_t* const found = file.record(record);
        const int64_t id = key_of(found);
        if (!version.partitions.has(sparring::partition_of(id))) continue;
        if (layer != 0 && layer_of(table, id) != layer) continue;
        found_rows[arguments.count - num_written] = PackedFile::row_of(found);
        arguments.ids[arguments.count++] = id;
        if (arguments.count - num_written == kWidened) write_found();
      }
    }
  }
  write_found();
  arguments.cursor[0] = layer << 32;
  arguments.cursor[1] = 0;
  arguments.is_done = 1;
}

// Copies the beginning of a UTF-8 text, without a part of a character.
template <size_t kSize>
void copy_text(const std::string& text, char (&out)[kSize]) {
  size_t count = std::min(text.size(), kSize - 1);
  if (count < text.size()) {
    while (count > 0 && (static_cast<unsigned char>(text[count]) & 0xc0u) == 0x80u) --count;
  }
  std::memcpy(out, text.data(), count);
  std::memset(out + count, 0, kSize - count);
}

}  // namespace

SparringStatus sparring_packed_open(SparringPackedOpen* arguments) {
  return guard(arguments, [&] {
    arguments->packed = nullptr;
    check_given(arguments->path != nullptr, "path");
    sparring::border::check(arguments->keep_versions >= 0 && arguments->keep_versions <= 8,
                            "keep_versions must be from 1 to 8, or 0 for 2", arguments->keep_versions);
    auto packed = std::make_unique<SparringPacked>();
    packed->path = arguments->path;
    packed->options = {partitions_of(*arguments), verifies_all(arguments->verify)};
    packed->keep_versions =
        arguments->keep_versions == 0 ? 2 : static_cast<size_t>(arguments->keep_versions);
    auto version = load_version(packed->path, packed->options, {});
    for (const Table& table : version->tables) packed->names.push_back(table.entry.name);
    keep(*packed, std::move(version), {});
    arguments->packed = packed.release();
  });
}

void sparring_packed_close(SparringPacked* packed) { delete packed; }

SparringStatus sparring_packed_refresh(SparringPacked* packed, SparringPackedRefresh* arguments) {
  return guard_open(packed, arguments, [&] {
    const std::lock_guard<std::mutex> lock(packed->refreshing);
    LoadOptions options = packed->options;
    options.verifies_all = verifies_all(arguments->verify);
    arguments->is_changed = 0;
    Versions known;
    {
      const Hold state(packed->state);
      known = state->versions;
    }
    const std::string path = arguments->path == nullptr ? packed->path : arguments->path;
    auto version = load_version(path, options, known);
    if (version == known.front()) return;
    check_same_tables(*version, *known.front());
    keep(*packed, std::move(version), known);
    arguments->is_changed = 1;
  });
}

SparringStatus sparring_packed_gate(SparringPackedGate* arguments) {
  return guard(arguments, [&] {
    check_given(arguments->path != nullptr, "path");
    const Gate gate = read_gate(Folder(std::string(arguments->path) + "/."));
    arguments->exists = gate.exists ? 1 : 0;
    arguments->is_closed = gate.is_closed ? 1 : 0;
    arguments->since = gate.since;
    copy_text(gate.pin, arguments->pin);
    copy_text(gate.pinned_by, arguments->pinned_by);
    copy_text(gate.reason, arguments->reason);
  });
}

SparringStatus sparring_packed_verify(SparringPacked* packed, SparringPackedVerify* arguments) {
  return guard_open(packed, arguments, [&] {
    const Hold state(packed->state);
    for (const auto& layer : state->versions.front()->layers) layer->verify();
  });
}

SparringStatus sparring_packed_version(SparringPacked* packed, SparringPackedVersion* arguments) {
  return guard_open(packed, arguments, [&] {
    const Hold state(packed->state);
    arguments->num_versions = static_cast<int32_t>(state->versions.size());
    sparring::border::check(arguments->back >= 0 && arguments->back < arguments->num_versions,
                            "back must be below the number of versions that are kept",
                            arguments->back);
    const Version& version = *state->versions[static_cast<size_t>(arguments->back)];
    arguments->num_tables = static_cast<int32_t>(version.tables.size());
    arguments->num_layers = static_cast<int32_t>(version.layers.size());
    arguments->step = version.manifest().step;
    arguments->published = version.manifest().published;
    arguments->mapped_bytes = version.mapped_bytes;
    std::memcpy(arguments->hash, version.manifest().hash.c_str(), sizeof arguments->hash);
    std::snprintf(arguments->name, sizeof arguments->name, "%s", version.layers.front()->name.c_str());
    if (arguments->call.struct_bytes >= sizeof *arguments) {
      arguments->generation = version.manifest().generation;
    }
  });
}

SparringStatus sparring_packed_table(SparringPacked* packed, SparringPackedTable* arguments) {
  return guard_open(packed, arguments, [&] {
    const Hold state(packed->state);
    const Table& table = numbered_table(*state->versions.front(), arguments->table);
    arguments->dim = static_cast<int32_t>(table.entry.dim);
    arguments->dtype = table.entry.dtype;
    arguments->trained_dtype = table.entry.trained_dtype;
    arguments->row_bytes = table.row_bytes;
    arguments->num_rows = table.num_rows;
    arguments->name = packed->names[static_cast<size_t>(arguments->table)].c_str();
  });
}

SparringStatus sparring_packed_pin(SparringPacked* packed, SparringPackedPin* arguments) {
  return guard_open(packed, arguments, [&] {
    arguments->pinned = nullptr;
    auto pinned = std::make_unique<SparringPacked>();
    pinned->keep_versions = 1;
    pinned->names = packed->names;
    pinned->single_reads = packed->single_reads.load();
    const Hold state(packed->state);
    const auto& newest = state->versions.front();
    pinned->path = newest->layers.front()->path;  // a refresh finds the same version
    pinned->options = {newest->partitions, false};
    keep(*pinned, newest, {});
    arguments->pinned = pinned.release();
  });
}

SparringStatus sparring_packed_model(SparringPacked* packed, SparringPackedModel* arguments) {
  return guard_open(packed, arguments, [&] {
    const Hold state(packed->state);
    read_model(named_version(*state, arguments->version), *arguments);
  });
}

SparringStatus sparring_packed_lookup(SparringPacked* packed, SparringPackedLookup* arguments) {
  return guard_open(packed, arguments,
                    [&] { answer_all(*packed, *arguments, false, look_up); });
}

SparringStatus sparring_packed_pool(SparringPacked* packed, SparringPackedLookup* arguments) {
  return guard_open(packed, arguments, [&] { answer_all(*packed, *arguments, true, pool); });
}

SparringStatus sparring_packed_scan(SparringPacked* packed, SparringPackedScan* arguments) {
  return guard_open(packed, arguments, [&] {
    check_dtype(arguments->dtype);
    sparring::border::check(arguments->capacity >= 1, "capacity must be at least 1",
                            arguments->capacity);
    check_given(arguments->ids != nullptr, "ids");
    const Hold state(packed->state);
    note_reads(*packed, *state, arguments->capacity);
    scan(named_version(*state, arguments->version), *arguments);
  });
}

SparringStatus sparring_packed_pack(SparringPackedPack* arguments) {
  return guard(arguments, [&] { pack(*arguments); });
}

int64_t sparring_hash_string(const char* bytes, size_t size) {
  return sparring::hash_string(bytes, size);
}

SparringStatus sparring_packed_widen(SparringPackedWiden* arguments) {
  return guard(arguments, [&] { widen_rows(*arguments); });
}

SparringStatus sparring_packed_select(SparringPackedSelect* arguments) {
  return guard(arguments, [&] { select(*arguments); });
}

const char* sparring_packed_simd_level(void) {
  try {
    return simd_level();
  } catch (const StatusError&) {
    return "";
  }
}

int32_t sparring_packed_set_simd_level(const char* name) {
  return name != nullptr && set_simd_level(name) ? 1 : 0;
}
