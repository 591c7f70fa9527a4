#include "tables/serving_tables.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "server/log.h"
#include "wire/fields.h"

namespace sparring::serve {

namespace {

namespace fs = std::filesystem;

// A rejected version is opened again after this time, because its files may be complete by then.
constexpr std::chrono::seconds kRetry{60};

constexpr int64_t kIdsAtOnce = 256;
constexpr size_t kBytesAtOnce = 1 << 20;

// In a file: length of the header, position of the number of buckets, and length of a bucket.
constexpr size_t kHeaderBytes = 128;
constexpr off_t kNumBucketsAt = 40;
constexpr uint64_t kBucketBytes = 64;

std::set<std::string> names_of(const std::string& folder) {
  std::set<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator each(folder, failed), end; !failed && each != end; each.increment(failed)) {
    names.insert(each->path().filename());
  }
  return names;
}

// Counts of a warm-up, which its thread may still change when the refresh no longer waits for it.
struct WarmUpState {
  std::mutex mutex;
  std::condition_variable ended;
  bool is_ended = false;
  std::atomic<bool> is_stopped{false};
  std::atomic<int64_t> num_ids{0};
  std::atomic<int64_t> num_bytes{0};
};

std::string encoded_version(int64_t step, std::string_view hash) {
  std::string encoded;
  FieldWriter writer(encoded);
  writer.whole(2, static_cast<uint64_t>(step));
  writer.text(3, hash);
  return encoded;
}

// Reads the directory of one file into the page cache.
void read_directory(const std::string& path, WarmUpState& state) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  uint64_t num_buckets = 0;
  if (pread(file, &num_buckets, sizeof num_buckets, kNumBucketsAt) == sizeof num_buckets) {
    std::vector<char> buffer(kBytesAtOnce);
    uint64_t left = num_buckets * kBucketBytes;
    off_t at = kHeaderBytes;
    while (left > 0 && !state.is_stopped) {
      const ssize_t count = pread(file, buffer.data(), std::min<uint64_t>(left, buffer.size()), at);
      if (count <= 0) break;
      at += count;
      left -= static_cast<uint64_t>(count);
      state.num_bytes += count;
    }
  }
  ::close(file);
}

}  // namespace

bool Served::has_version(std::string_view hash) const {
  return std::any_of(versions.begin(), versions.end(),
                     [&](const Version& each) { return each.hash == hash; });
}

ServingTables::ServingTables(const PackedLibrary& library, TablesOptions options)
    : library_(library), options_(std::move(options)) {
  const std::string& folder = options_.folder;
  PackedLibrary::Handle packed;
  if (!options_.pin.empty()) {
    try {
      packed = open(folder + "/" + options_.pin, options_.verifies_all);
    } catch (const PackedError& error) {
      throw PackedError(error.status, std::string(error.what()) + ". server.pin=" + options_.pin +
                                          " selects this version: select another folder of " + folder +
                                          ", or remove server.pin to serve the newest intact version");
    }
    remember(std::move(packed), {}, {});
    return;
  }
  try {
    packed = open(folder, options_.verifies_all);
  } catch (const PackedError& error) {
    refused_ = error.what();
    tried_names_ = names_of(folder);
    tried_ = std::chrono::steady_clock::now();
    packed = open_older(tried_names_);
    if (packed == nullptr) {
      throw PackedError(error.status, refused_ + ". To write a serving snapshot: sparring publish RUN --output " + folder);
    }
    is_behind_ = true;
    const SparringPackedVersion version = library_.version(packed.get(), 0);
    log(LogLevel::kWarning, "the newest version cannot be served: " + refused_ + ". Version " + folder +
                                "/" + version.name + ", step " + std::to_string(version.step) +
                                ", is served until an intact newer one is published; server.pin=" +
                                version.name + " serves no other");
  }
  remember(std::move(packed), refused_, {});
  note_gate();
}

PackedLibrary::Handle ServingTables::open(const std::string& path, bool verifies_all) const {
  return library_.open({path, verifies_all, options_.keep_versions, options_.partition_begin,
                        options_.partition_end});
}

// Opens the newest intact version; returns null if there is none.
PackedLibrary::Handle ServingTables::open_older(const std::set<std::string>& names) const {
  std::vector<std::tuple<int64_t, int64_t, std::string>> found;
  for (const std::string& name : names) {
    try {
      const PackedLibrary::Handle opened = open(options_.folder + "/" + name, false);
      const SparringPackedVersion version = library_.version(opened.get(), 0);
      found.emplace_back(version.generation, version.step, name);
    } catch (const PackedError&) {
      continue;  // not a serving snapshot, or its headers are damaged
    }
  }
  std::sort(found.rbegin(), found.rend());
  for (const auto& [generation, step, name] : found) {
    const std::string path = options_.folder + "/" + name;
    try {
      return open(path, options_.verifies_all);
    } catch (const PackedError& error) {
      log(LogLevel::kWarning, "serving snapshot " + path + " is skipped: " + error.what());
    }
  }
  return nullptr;
}

void ServingTables::remember(PackedLibrary::Handle packed, std::string not_fresh, WarmUp warm_up) {
  auto made = std::make_shared<Served>();
  SparringPackedVersion newest = library_.version(packed.get(), 0);
  for (int back = 0; back < newest.num_versions; ++back) {
    const SparringPackedVersion each = back == 0 ? newest : library_.version(packed.get(), back);
    made->versions.push_back({each.hash, each.step, each.published, encoded_version(each.step, each.hash)});
  }
  for (int number = 0; number < newest.num_tables; ++number) {
    const SparringPackedTable each = library_.table(packed.get(), number);
    const auto initial = options_.initial_values.find(each.name);
    made->tables.push_back({each.name, number, each.dim, each.dtype, each.row_bytes, each.num_rows,
                            initial == options_.initial_values.end() ? "" : initial->second});
    made->names.emplace_back(each.name);
    made->numbers.emplace(each.name, number);
  }
  made->num_layers = newest.num_layers;
  made->mapped_bytes = static_cast<double>(newest.mapped_bytes);
  made->packed = std::move(packed);
  made->not_fresh = std::move(not_fresh);
  made->warm_up = warm_up;
  if (const auto previous = served()) made->gate = previous->gate;
  if (recent_.empty()) recent_ = std::vector<RecentIds>(made->tables.size());
  served_.store(std::move(made));
}

std::string ServingTables::find_version(const Served& served, std::string_view hash) const {
  for (int back = 0, count = 1; back < count; ++back) {
    const SparringPackedVersion each = library_.version(served.packed.get(), back);
    if (hash == each.hash) return encoded_version(each.step, hash);
    count = each.num_versions;
  }
  return {};
}

PackedLibrary::Handle ServingTables::retry_newest() {
  std::set<std::string> names = names_of(options_.folder);
  const auto now = std::chrono::steady_clock::now();
  if (names == tried_names_ && now - tried_ < kRetry) throw PackedError(SPARRING_CORRUPT, refused_);
  tried_names_ = std::move(names);
  tried_ = now;
  try {
    PackedLibrary::Handle newest = open(options_.folder, options_.verifies_all);
    check_same_tables(*newest);
    return newest;
  } catch (const PackedError& error) {
    refused_ = error.what();
    throw;
  }
}

// Rejects other tables, as the refresh of a handle does: metrics and recent ids are counted by number.
void ServingTables::check_same_tables(SparringPacked& newest) const {
  const auto listed = [](std::string text, const char* name) { return text + (text.empty() ? "" : ", ") + name; };
  std::string found, served_names;
  const SparringPackedVersion version = library_.version(&newest, 0);
  for (int number = 0; number < version.num_tables; ++number) {
    found = listed(found, library_.table(&newest, number).name);
  }
  for (const std::string& name : served()->names) served_names = listed(served_names, name.c_str());
  if (found == served_names) return;
  throw PackedError(SPARRING_INVALID_ARGUMENT, "serving snapshot " + std::string(version.name) +
                                                   " has the tables " + found + ", but " + served_names +
                                                   " are served; restart the server");
}

GateState ServingTables::read_gate() {
  SparringPackedGate found{};
  std::string damage;
  try {
    found = library_.gate(options_.folder);
  } catch (const PackedError& error) {
    if (error.status != SPARRING_CORRUPT) return served()->gate;  // the refresh reports it
    damage = error.what();
  }
  if (damage != damaged_gate_ && !damage.empty()) {
    log(LogLevel::kWarning, "the gate is ignored: " + damage);
  }
  damaged_gate_ = damage;
  GateState state;
  state.is_closed = found.is_closed != 0;
  state.is_pinned = found.pin[0] != 0;
  FieldWriter writer(state.encoded);
  writer.whole(1, state.is_closed ? 1 : 0);
  writer.text(2, found.reason);
  writer.text(3, found.pin);
  writer.text(4, found.pinned_by);
  writer.real(5, found.since);
  const std::string reason = found.reason;
  state.text = std::string("the gate is ") + (state.is_closed ? "closed" : "open") + " (" +
               (reason.empty() ? "no reason" : reason) + "); pin: " +
               (state.is_pinned ? std::string(found.pin) + ", by the " + found.pinned_by : "none");
  return state;
}

// Reads the state of the gate, which the library obeys, and logs changes.
void ServingTables::note_gate() {
  GateState state = read_gate();
  const std::shared_ptr<const Served> current = served();
  if (state.encoded == current->gate.encoded) return;
  log(LogLevel::kWarning, state.text);
  auto changed = std::make_shared<Served>(*current);
  changed->gate = std::move(state);
  served_.store(std::move(changed));
}

bool ServingTables::refresh() {
  if (options_.pin.empty()) note_gate();
  const std::shared_ptr<const Served> current = served();
  try {
    if (is_behind_) {
      // Calls in progress use the previous handle, which is closed when the last of them has ended.
      remember(retry_newest(), {}, {});
      is_behind_ = false;
      return true;
    }
    const WarmUp warm_up = notes_ids() ? warm(*current) : WarmUp{};
    if (library_.refresh(current->packed.get(), options_.verifies_all)) {
      remember(current->packed, {}, warm_up);
      return true;
    }
  } catch (const PackedError& error) {
    auto behind = std::make_shared<Served>(*current);
    behind->not_fresh = error.what();
    served_.store(std::move(behind));
    throw;
  }
  if (!current->not_fresh.empty()) {
    auto fresh = std::make_shared<Served>(*current);
    fresh->not_fresh.clear();
    served_.store(std::move(fresh));
  }
  return false;
}

// Reads parts of a newer version on a separate thread until the time limit, so that a slow file system
// does not delay the switch for longer: recently requested ids, then the directories of its own files.
WarmUp ServingTables::warm(const Served& current) {
  std::set<std::string> names = names_of(options_.folder);
  if (names == warmed_names_) return {};  // nothing was published, because snapshots are never changed
  PackedLibrary::Handle newer;
  SparringPackedVersion version;
  try {
    newer = library_.open({options_.folder, false, 1, options_.partition_begin, options_.partition_end});
    version = library_.version(newer.get(), 0);
  } catch (const PackedError&) {
    return {};  // the refresh that follows reports the error
  }
  warmed_names_ = std::move(names);
  if (current.has_version(version.hash)) return {};
  struct Asked {
    int32_t table;
    int32_t dim;
    std::vector<int64_t> ids;
  };
  std::vector<Asked> asked;
  for (int32_t number = 0; number < version.num_tables; ++number) {
    const SparringPackedTable table = library_.table(newer.get(), number);
    const auto known = current.numbers.find(table.name);
    if (known == current.numbers.end()) continue;
    asked.push_back({number, table.dim, recent_[static_cast<size_t>(known->second)].newest_first()});
  }
  const auto state = std::make_shared<WarmUpState>();
  const std::string folder = options_.folder + "/" + version.name;
  std::thread([state, newer, asked = std::move(asked), folder, library = library_] {
    for (const Asked& each : asked) {
      std::vector<float> rows(static_cast<size_t>(kIdsAtOnce * each.dim));
      for (size_t at = 0; at < each.ids.size() && !state->is_stopped; at += kIdsAtOnce) {
        SparringPackedRequest request{};
        request.table = each.table;
        request.count = std::min<int64_t>(kIdsAtOnce, static_cast<int64_t>(each.ids.size() - at));
        request.ids = each.ids.data() + at;
        request.rows = rows.data();
        auto lookup = arguments_of<SparringPackedLookup>();
        lookup.missing = SPARRING_PACKED_ZEROS;
        lookup.num_requests = 1;
        lookup.requests = &request;
        try {
          library.lookup(newer.get(), lookup);
        } catch (const PackedError&) {
          break;  // the refresh that follows reports damage
        }
        state->num_ids += request.count;
      }
    }
    for (const std::string& name : names_of(folder)) {
      if (name.ends_with(".packed")) read_directory(folder + "/" + name, *state);
    }
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->is_ended = true;
    state->ended.notify_all();
  }).detach();
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->ended.wait_for(lock, std::chrono::duration<double>(options_.warm_up_seconds),
                        [&] { return state->is_ended; });
  state->is_stopped = true;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {seconds.count(), static_cast<double>(state->num_ids.load()),
          static_cast<double>(state->num_bytes.load())};
}

}  // namespace sparring::serve
