#include "database.h"

#include <pthread.h>
#include <rocksdb/cache.h>
#include <rocksdb/utilities/checkpoint.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>

#include "database_options.h"
#include "plain_log.h"
#include "status.h"

namespace sparring::flash {

using namespace std::chrono_literals;

namespace {

constexpr const char* kFormatKey = "format";
constexpr const char* kFormat = "sparring-rocksdb 1";
constexpr auto kPause = 50ms;
constexpr auto kMostWaiting = 8000ms;
constexpr int kMostCatchUps = 20;
const std::string kLabelPrefix = "label/";
const std::string kNotePrefix = "note/";
const std::string kFamilyPrefix = "table/";

std::string note_key(const std::string& table, const std::string& name) {
  return kNotePrefix + name + "/" + table;
}

// The open databases, by folder. The mutex is held while databases are opened and
// closed, because RocksDB cannot open a folder that is still being closed.
struct Registry {
  struct Entry {
    std::unique_ptr<Database> database;
    int64_t num_users;
  };
  std::mutex mutex;
  std::map<std::string, Entry> entries;
};

Registry& registry() {
  // Never destroyed: a storage may outlive static objects when the process ends.
  static auto* made = new Registry;
  return *made;
}

// When the process ends, RocksDB stops its threads and waits for them. A forked child does not have
// these threads, so it must exit without that. Registered once per process.
void mind_forks() {
#ifdef __GLIBC__
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      on_exit(
          [](int status, void*) {
            std::fflush(nullptr);
            ::_exit(status);
          },
          nullptr);
    });
  });
#endif
}

[[noreturn]] void refuse(const std::string& message) {
  throw StatusError(SPARRING_INVALID_ARGUMENT, message);
}

// Returns a canonical path for a folder. Creates it, except for a secondary.
std::string settle(const std::string& folder, bool secondary) {
  std::error_code error;
  if (!secondary) {
    std::filesystem::create_directories(folder, error);
  } else if (!std::filesystem::exists(std::filesystem::path(folder) / "CURRENT", error)) {
    throw StatusError(SPARRING_IO, folder +
                                       ": there is no database to read as a secondary; open it "
                                       "first in the process that writes, or omit the option secondary");
  }
  std::filesystem::path path;
  if (!error) path = std::filesystem::canonical(folder, error);
  if (!error && !std::filesystem::is_directory(path, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) {
    throw StatusError(SPARRING_IO, folder + ": the folder cannot be created or read (" +
                                       error.message() +
                                       "); set path to a folder that this process may write to");
  }
  return path.string();
}

}  // namespace

std::shared_ptr<Database> Database::open(const std::string& folder,
                                         const DatabaseOptions& options) {
  const std::string folder_path = settle(folder, options.secondary);
  // Both may be open in one process.
  const std::string place = folder_path + (options.secondary ? " as a secondary" : "");
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  auto found = all.entries.find(place);
  if (found != all.entries.end() && found->second.database->is_of_parent()) {
    throw StatusError(SPARRING_IO, place + kOfParent);
  }
  mind_forks();
  if (found == all.entries.end()) {
    std::unique_ptr<Database> made(new Database(folder_path, options));
    found = all.entries.emplace(place, Registry::Entry{std::move(made), 0}).first;
  } else if (!(found->second.database->options_ == options)) {
    refuse(place + " is already open in this process with other options: " +
           found->second.database->options_.difference(options) +
           "; set the same options for all tables of a folder, or set path to another folder");
  }
  ++found->second.num_users;
  return {found->second.database.get(), [place](const Database* used) {
            if (used->is_of_parent()) return;
            Registry& left = registry();
            const std::lock_guard leaving(left.mutex);
            const auto entry = left.entries.find(place);
            if (--entry->second.num_users == 0) left.entries.erase(entry);
          }};
}

Database::Database(std::string folder, const DatabaseOptions& options)
    : folder_(std::move(folder)),
      options_(options),
      cache_(rocksdb::NewLRUCache(options.block_cache_bytes)),
      family_options_(family_options(options, cache_)) {
  rocksdb::DBOptions db_options = database_options(options);
  // A secondary has no folder of its own, so its log is discarded.
  const std::string own = options.secondary ? folder_ + "/secondary" : folder_;
  db_options.info_log = std::make_shared<PlainLog>(own);
  std::vector<std::string> names;
  std::error_code error;
  if (std::filesystem::exists(folder_ + "/CURRENT", error)) {
    check(rocksdb::DB::ListColumnFamilies(db_options, folder_, &names), asked("open the tables"));
  } else {
    names = {rocksdb::kDefaultColumnFamilyName};
  }
  std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
  for (const std::string& name : names) wanted.emplace_back(name, family_options_);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  check(options.secondary
            ? rocksdb::DB::OpenAsSecondary(db_options, folder_, own, wanted, &handles, &db)
            : rocksdb::DB::Open(db_options, folder_, wanted, &handles, &db),
        asked("open the tables"));
  db_.reset(db);
  for (size_t i = 0; i < names.size(); ++i) families_[names[i]] = handles[i];
  try {
    check_format();
  } catch (...) {
    close();
    throw;
  }
}

Database::~Database() { close(); }

void Database::close() noexcept {
  if (db_ == nullptr) return;
  // Writes acknowledged before a close should not depend on the page cache. A caller that needs to
  // know whether it succeeded calls flush.
  // Without the log of a failed write, which RocksDB cannot write any more.
  if (!is_secondary() && resume(0ms).ok()) db_->FlushWAL(true).PermitUncheckedError();
  for (const auto& [name, handle] : families_) {
    db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  }
  families_.clear();
  db_->Close().PermitUncheckedError();
  db_.reset();
}

void Database::check_format() {
  std::string found;
  const rocksdb::Status status = db_->Get({}, catalogue(), kFormatKey, &found);
  if (status.IsNotFound()) {
    const std::unique_ptr<rocksdb::Iterator> records(db_->NewIterator({}, catalogue()));
    records->SeekToFirst();
    check(records->status(), asked("read the catalog"));
    check_writable("open a database without tables");
    if (records->Valid() || families_.size() > 1) {
      refuse(folder_ + " contains a RocksDB database that sparring did not create; set path to "
                       "another folder");
    }
    rocksdb::WriteOptions durable;
    durable.sync = true;
    rocksdb::WriteBatch batch;
    check(batch.Put(catalogue(), kFormatKey, kFormat), asked("write the catalog"));
    check(write(durable, batch), asked("write the catalog"));
    return;
  }
  check(status, asked("read the catalog"));
  if (found != kFormat) {
    refuse(folder_ + " has the format '" + found + "', but this sparring-rocksdb reads '" + kFormat +
           "'; open it with the version of sparring-rocksdb that wrote it");
  }
}

void Database::catch_up() const {
  if (!is_secondary()) return;
  const std::lock_guard lock(catching_up_);
  rocksdb::Status status = db_->TryCatchUpWithPrimary();
  // A listed file may have been removed before it is opened: a newer list contains its replacement.
  for (int tried = 1; !status.ok() && tried < kMostCatchUps; ++tried) {
    std::this_thread::sleep_for(kPause);
    status = db_->TryCatchUpWithPrimary();
  }
  check(status, asked("read the writes of another process"));
}

void Database::check_writable(const char* what) const {
  if (!is_secondary()) return;
  throw StatusError(SPARRING_UNSUPPORTED, asked(what) +
                                              ": it was opened with secondary=true, to read what another "
                                              "process writes; write there, or omit secondary");
}

std::optional<std::string> Database::label(const std::string& table) const {
  std::string found;
  const rocksdb::Status status = db_->Get({}, catalogue(), kLabelPrefix + table, &found);
  if (status.IsNotFound()) return std::nullopt;
  check(status, asked("read the label of table '" + table + "'"));
  return found;
}

std::vector<std::string> Database::tables() const {
  std::vector<std::string> names;
  const std::unique_ptr<rocksdb::Iterator> records(db_->NewIterator({}, catalogue()));
  for (records->Seek(kLabelPrefix); records->Valid() && records->key().starts_with(kLabelPrefix);
       records->Next()) {
    names.push_back(records->key().ToString().substr(kLabelPrefix.size()));
  }
  check(records->status(), asked("read the catalog"));
  return names;
}

std::optional<std::string> Database::read_note(const std::string& table,
                                               const std::string& name) const {
  catch_up();
  std::string found;
  const rocksdb::Status status = db_->Get({}, catalogue(), note_key(table, name), &found);
  if (status.IsNotFound()) return std::nullopt;
  check(status, asked("read note '" + name + "' of table '" + table + "'"));
  return found;
}

void Database::write_note(const std::string& table, const std::string& name,
                          const std::optional<std::string>& text) {
  check_writable("write a note");
  const std::string what = asked("write note '" + name + "' of table '" + table + "'");
  const std::string key = note_key(table, name);
  rocksdb::WriteBatch batch;
  check(text.has_value() ? batch.Put(catalogue(), key, *text) : batch.Delete(catalogue(), key),
        what);
  rocksdb::WriteOptions durable;
  durable.sync = true;
  check(write(durable, batch), what);
}

rocksdb::ColumnFamilyHandle* Database::take(const std::string& table, const std::string& label) {
  const std::lock_guard lock(mutex_);
  if (taken_.contains(table)) {
    refuse("table '" + table + "' in " + folder_ +
           " is already open in this process; close that storage first, or share it");
  }
  const std::optional<std::string> found = this->label(table);
  if (found.has_value() && *found != label) {
    refuse("table '" + table + "' in " + folder_ + " was created as '" + *found +
           "' in the meantime, expected '" + label + "'; open it again");
  }
  const std::string name = kFamilyPrefix + table;
  if (!found.has_value() || !families_.contains(name)) check_writable("create a table");
  rocksdb::ColumnFamilyHandle*& family = families_[name];
  if (family == nullptr) {
    const rocksdb::Status status = db_->CreateColumnFamily(family_options_, name, &family);
    if (!status.ok()) families_.erase(name);
    check(status, asked("create table '" + table + "'"));
  }
  if (!found.has_value()) {
    // The column family may exist and be empty, if a process ended before this was written.
    rocksdb::WriteBatch batch;
    check(batch.Put(catalogue(), kLabelPrefix + table, label), asked("create table '" + table + "'"));
    check(batch.Put(catalogue(), rows_key(table), encode_num_rows(0)),
          asked("create table '" + table + "'"));
    rocksdb::WriteOptions durable;
    durable.sync = true;
    check(write(durable, batch), asked("create table '" + table + "'"));
  }
  taken_.insert(table);
  return family;
}

void Database::give_back(const std::string& table) {
  const std::lock_guard lock(mutex_);
  taken_.erase(table);
}

rocksdb::ColumnFamilyHandle* Database::family(const std::string& table) const {
  const std::lock_guard lock(mutex_);
  return families_.at(kFamilyPrefix + table);
}

std::string Database::encode_num_rows(int64_t num_rows) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) {
    bytes[static_cast<size_t>(i)] = static_cast<char>(static_cast<uint64_t>(num_rows) >> (8 * i));
  }
  return bytes;
}

int64_t Database::read_num_rows(const std::string& table) const {
  std::string found;
  check(db_->Get({}, catalogue(), rows_key(table), &found),
        asked("read the number of rows of table '" + table + "'"));
  uint64_t num_rows = 0;
  for (size_t i = 0; i < found.size() && i < 8; ++i) {
    num_rows |= uint64_t{static_cast<unsigned char>(found[i])} << (8 * i);
  }
  if (found.size() != 8 || num_rows > INT64_MAX) {
    throw StatusError(SPARRING_CORRUPT, asked("read the number of rows of table '" + table + "'") +
                                            ": it is not a number; restore a checkpoint or snapshot");
  }
  return static_cast<int64_t>(num_rows);
}

rocksdb::Status Database::write(const rocksdb::WriteOptions& options, rocksdb::WriteBatch& batch) {
  const rocksdb::Status resumed = resume(kMostWaiting);
  // While RocksDB waits for free space, its write returns the reason.
  if (!resumed.ok() && !resumed.IsBusy()) return resumed;
  const rocksdb::Status written = db_->Write(options, &batch);
  // Only `resume` clears it: a concurrent write may have failed.
  if (!written.ok()) has_failed_ = true;
  return written;
}

rocksdb::Status Database::sync_log() {
  const rocksdb::Status resumed = resume(kMostWaiting);
  if (resumed.IsBusy()) return rocksdb::Status::NoSpace("the last write failed");
  if (!resumed.ok()) return resumed;
  const rocksdb::Status synced = db_->FlushWAL(/*sync=*/true);
  if (!synced.ok()) has_failed_ = true;
  return synced;
}

rocksdb::Status Database::resume(std::chrono::milliseconds most_waiting) {
  if (!has_failed_) return rocksdb::Status::OK();
  rocksdb::Status resumed = db_->Resume();
  // After a full disk, RocksDB itself checks every few seconds whether there is free space.
  for (auto waited = 0ms; resumed.IsBusy() && waited < most_waiting; waited += kPause) {
    std::this_thread::sleep_for(kPause);
    resumed = db_->Resume();
  }
  if (resumed.ok()) has_failed_ = false;
  return resumed;
}

void Database::checkpoint(const std::string& folder) const {
  check_writable("checkpoint");
  const std::string what = asked("checkpoint") + " to " + folder;
  std::error_code error;
  const std::filesystem::path target = std::filesystem::absolute(folder).lexically_normal();
  if (std::filesystem::exists(target, error)) {
    refuse(what + ": it already exists; specify a folder that does not exist");
  }
  std::filesystem::create_directories(target.parent_path(), error);
  if (error) {
    throw StatusError(SPARRING_IO, what + ": its parent folder cannot be created (" +
                                       error.message() + "); specify another folder");
  }
  rocksdb::Checkpoint* made = nullptr;
  check(rocksdb::Checkpoint::Create(db_.get(), &made), what);
  const std::unique_ptr<rocksdb::Checkpoint> owned(made);
  // RocksDB writes a temporary folder next to the target, and renames it when it is complete.
  check(owned->CreateCheckpoint(target.string()), what);
}

void Database::purge(const std::string& table) const {
  check_writable("purge");
  const std::string what = asked("purge of table " + table);
  std::vector<rocksdb::ColumnFamilyHandle*> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, each] : families_) all.push_back(each);
  }
  // Together, because the shared log can be removed only when none of its writes is needed.
  check(db_->Flush(rocksdb::FlushOptions(), all), what);
  rocksdb::CompactRangeOptions options;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  check(db_->CompactRange(options, family(table), nullptr, nullptr), what);
}

uint64_t Database::memory_bytes(rocksdb::ColumnFamilyHandle* family) const {
  uint64_t buffers = 0;
  uint64_t readers = 0;
  db_->GetIntProperty(family, rocksdb::DB::Properties::kSizeAllMemTables, &buffers);
  db_->GetIntProperty(family, rocksdb::DB::Properties::kEstimateTableReadersMem, &readers);
  const std::lock_guard lock(mutex_);
  const uint64_t num_tables = taken_.empty() ? 1 : taken_.size();
  return buffers + readers + cache_->GetUsage() / num_tables;
}

}  // namespace sparring::flash
