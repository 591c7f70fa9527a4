#include "table.h"

#include <rocksdb/convenience.h>
#include <rocksdb/perf_level.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "status.h"

namespace sparring::flash {
namespace {

// Number of keys per MultiGet. RocksDB processes 32 at a time; with more it moves their state to the
// heap, and the destinations of the rows would not stay in the L1 cache.
constexpr size_t kGroup = 32;
// Minimum number of keys for which it is worth waking a thread.
constexpr int64_t kGrain = 8 * kGroup;
// Larger calls are written in several batches, to limit the memory of a call.
constexpr uint64_t kBatchBytes = 16 << 20;

// Rows are scattered in the cache: some are prefetched while others are copied.
constexpr size_t kRowsAhead = 16;

// Beyond this many bytes of a row, the hardware prefetcher takes over.
constexpr uint64_t kMostAhead = 1024;

template <bool is_written>
void prefetch(const char* begin, uint64_t num_bytes) {
  const uint64_t ahead = std::min(num_bytes, kMostAhead);
  for (uint64_t at = 0; at < ahead; at += 64) __builtin_prefetch(begin + at, is_written, 2);
}

// RocksDB updates some ten thread-local counters per key, which nothing here reads. The thread belongs
// to the caller, so the level is restored, and not changed if it was set higher.
class WithoutCounting {
 public:
  WithoutCounting() : level_(rocksdb::GetPerfLevel()) {
    if (level_ == rocksdb::PerfLevel::kEnableCount) {
      rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
    }
  }
  ~WithoutCounting() { rocksdb::SetPerfLevel(level_); }
  WithoutCounting(const WithoutCounting&) = delete;
  WithoutCounting& operator=(const WithoutCounting&) = delete;

 private:
  rocksdb::PerfLevel level_;
};

rocksdb::Slice slice(const KeyBytes& key) { return {key.data(), KeyBytes::size()}; }

}  // namespace

struct Table::Group {
  std::array<KeyBytes, kGroup> bytes;
  std::array<rocksdb::Slice, kGroup> keys;
  std::array<rocksdb::PinnableSlice, kGroup> values;
  std::array<rocksdb::Status, kGroup> statuses;
};

Table::Table(std::shared_ptr<Database> database, const TableOptions& options)
    : options_(options),
      database_(std::move(database)),
      family_(database_->take(options.name, options.label)),
      num_rows_(0),
      known_(options.known_keys_bytes, false) {
  try {
    num_rows_ = database_->read_num_rows(options_.name);
  } catch (...) {
    database_->give_back(options_.name);
    throw;
  }
  known_.clear(num_rows_ == 0);
}

Table::~Table() { close(); }

std::shared_lock<std::shared_mutex> Table::use() {
  if (owner_ != ::getpid()) {
    throw StatusError(SPARRING_CLOSED, "the storage of table '" + options_.name + "'" + kOfParent);
  }
  std::shared_lock<std::shared_mutex> lock;
  if (!is_closed_.load(std::memory_order_acquire)) lock = std::shared_lock(in_use_);
  if (is_closed_.load(std::memory_order_acquire)) {
    throw StatusError(SPARRING_CLOSED, "the storage of table '" + options_.name +
                                           "' is closed; open it again with sparring.open_storage");
  }
  return lock;
}

void Table::close() {
  // First the flag, so that a stream of callers cannot starve this one.
  is_closed_.store(true, std::memory_order_release);
  if (owner_ != ::getpid()) {
    database_.reset();  // a thread of the parent may hold the lock
    return;
  }
  const std::unique_lock lock(in_use_);
  if (database_ == nullptr) return;
  database_->give_back(options_.name);
  database_.reset();
  known_.clear(false);
}

void Table::find(SparringFind& call) {
  database_->catch_up();
  read(in_order(call.keys, call.count), call.call.executor,
       {static_cast<char*>(call.rows), call.row_stride, call.columns, call.found});
}

void Table::read(const Codes& codes, const SparringExecutor* executor,
                 const Destination& to) const {
  border::parallel_for(executor, static_cast<int64_t>(codes.size()), kGrain,
                       [&](int64_t begin, int64_t end) {
                         const WithoutCounting without_counting;
                         Group group;
                         for (auto at = static_cast<size_t>(begin); at < static_cast<size_t>(end);) {
                           const size_t count = std::min(kGroup, static_cast<size_t>(end) - at);
                           read_group(codes.data() + at, count, group, to);
                           at += count;
                         }
                       });
}

void Table::read_group(const PlacedCode* codes, size_t count, Group& group,
                       const Destination& to) const {
  auto& [bytes, keys, values, statuses] = group;
  const uint64_t wanted = to.columns.end - to.columns.begin;
  const auto place = [&](size_t i) {
    return to.rows + static_cast<uint64_t>(codes[i].position) * to.stride;
  };
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = KeyBytes(codes[i].code);
    keys[i] = slice(bytes[i]);
    // Destinations are anywhere in the output: they are prefetched while RocksDB searches.
    if (to.rows != nullptr) prefetch<true>(place(i), wanted);
  }
  database_->db().MultiGet(rocksdb::ReadOptions(), family_, count, keys.data(), values.data(),
                           statuses.data(), /*sorted_input=*/true);
  const auto prefetch_row = [&](size_t i) {
    if (to.rows == nullptr || i >= count || values[i].size() != options_.row_bytes) return;
    prefetch<false>(values[i].data() + to.columns.begin, wanted);
  };
  for (size_t i = 0; i < kRowsAhead; ++i) prefetch_row(i);
  for (size_t i = 0; i < count; ++i) {
    prefetch_row(i + kRowsAhead);
    const auto position = static_cast<uint64_t>(codes[i].position);
    const bool is_found = !statuses[i].IsNotFound();
    if (is_found) check_done("find", statuses[i]);
    to.found[position] = is_found;
    if (is_found && values[i].size() != options_.row_bytes) {
      throw StatusError(SPARRING_CORRUPT,
                        asked("find") + ": the row of key " + std::to_string(key_of(codes[i].code)) +
                            " has " + std::to_string(values[i].size()) + " bytes instead of " +
                            std::to_string(options_.row_bytes) +
                            "; restore a checkpoint or snapshot");
    }
    if (to.rows != nullptr && is_found) {
      std::memcpy(place(i), values[i].data() + to.columns.begin, wanted);
    } else if (to.rows != nullptr) {
      std::memset(place(i), 0, wanted);
    }
    values[i].Reset();  // releases the block
  }
}

std::vector<uint8_t> Table::find_new(const Codes& codes, const SparringExecutor* executor) const {
  std::vector<uint8_t> is_new(codes.size(), 0);
  Codes unknown;  // their positions are indices into codes
  for (size_t i = 0; i < codes.size(); ++i) {
    if (known_.contains(codes[i].code)) continue;
    is_new[i] = 1;
    if (!known_.is_complete()) unknown.push_back({codes[i].code, static_cast<int64_t>(i)});
  }
  if (unknown.empty()) return is_new;
  read(unknown, executor, {nullptr, 0, {0, 0}, is_new.data()});
  for (const PlacedCode& each : unknown) is_new[static_cast<size_t>(each.position)] ^= 1;
  return is_new;
}

void Table::upsert(SparringUpsert& call) {
  database_->check_writable("upsert");
  const Codes codes = in_order(call.keys, call.count);
  write(codes, find_new(codes, call.call.executor), static_cast<const char*>(call.rows),
        call.row_stride);
}

void Table::write(const Codes& codes, const std::vector<uint8_t>& is_new, const char* rows,
                  uint64_t stride) {
  const uint64_t record_bytes = options_.row_bytes + KeyBytes::size() + 16;
  const size_t most = std::max<uint64_t>(1, kBatchBytes / record_bytes);
  for (size_t begin = 0; begin < codes.size(); begin += most) {
    const size_t end = std::min(codes.size(), begin + most);
    rocksdb::WriteBatch batch((end - begin) * record_bytes + 256);
    int64_t num_new = 0;
    for (size_t i = begin; i < end; ++i) {
      const KeyBytes key(codes[i].code);
      const char* row = rows + static_cast<uint64_t>(codes[i].position) * stride;
      check_done("upsert", batch.Put(family_, slice(key), {row, options_.row_bytes}));
      num_new += is_new[i];
    }
    commit(batch, num_rows_ + num_new, [&] {
      for (size_t i = begin; i < end; ++i) known_.insert(codes[i].code);
    });
  }
}

void Table::update(SparringUpdate& call) {
  database_->check_writable("update");
  const Codes codes = in_order(call.keys, call.count);
  const auto n = static_cast<size_t>(call.count);
  // Ordered by position, as the callbacks expect.
  std::vector<char> rows(n * options_.row_bytes);
  std::vector<uint8_t> found(n);
  read(codes, call.call.executor,
       {rows.data(), options_.row_bytes, {0, options_.row_bytes}, found.data()});
  std::vector<int64_t> missing;
  for (size_t i = 0; i < n; ++i) {
    if (!found[i]) missing.push_back(static_cast<int64_t>(i));
  }
  std::vector<uint8_t> is_admitted(missing.size(), 1);
  if (!missing.empty() && call.admit != nullptr &&
      call.admit(call.context, static_cast<int64_t>(missing.size()), missing.data(),
                 is_admitted.data()) != 0) {
    throw StatusError(SPARRING_INTERNAL, asked("update") + ": the callback admit failed; no row was changed");
  }
  std::vector<uint8_t> is_left_out(n, 0);
  for (size_t i = 0; i < missing.size(); ++i) {
    is_left_out[static_cast<size_t>(missing[i])] = !is_admitted[i];
  }
  Codes changed;
  std::vector<int64_t> positions;
  std::vector<uint8_t> is_new;
  changed.reserve(n);
  for (const PlacedCode& each : codes) {
    if (is_left_out[static_cast<size_t>(each.position)]) continue;
    changed.push_back(each);
    positions.push_back(each.position);
    is_new.push_back(!found[static_cast<size_t>(each.position)]);
  }
  std::vector<void*> pointers;
  for (const int64_t position : positions) {
    pointers.push_back(rows.data() + static_cast<uint64_t>(position) * options_.row_bytes);
  }
  border::parallel_for(call.call.executor, static_cast<int64_t>(changed.size()), kGrain,
                       [&](int64_t begin, int64_t end) {
                         call.change(call.context, end - begin, positions.data() + begin,
                                     pointers.data() + begin, is_new.data() + begin);
                       });
  write(changed, is_new, rows.data(), options_.row_bytes);
  call.inserted = std::count(is_new.begin(), is_new.end(), uint8_t{1});
}

void Table::erase(SparringErase& call) {
  database_->check_writable("erase");
  const Codes codes = in_order(call.keys, call.count);
  const std::vector<uint8_t> is_new = find_new(codes, call.call.executor);
  rocksdb::WriteBatch batch;
  int64_t num_erased = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (is_new[i]) continue;
    check_done("erase", batch.Delete(family_, slice(KeyBytes(codes[i].code))));
    ++num_erased;
  }
  if (num_erased > 0) {
    commit(batch, num_rows_ - num_erased, [&] {
      for (const PlacedCode& each : codes) known_.erase(each.code);
    });
  }
  call.erased = num_erased;
}

void Table::clear() {
  database_->check_writable("clear");
  // After the last key, which is 8 bytes of 0xff.
  const std::string end(9, '\xff');
  rocksdb::WriteBatch batch;
  check_done("clear", batch.DeleteRange(family_, rocksdb::Slice(), end));
  commit(batch, 0, [&] { known_.clear(true); });
  // Before files are removed, it must be certain that no later read needs their rows.
  flush();
  // Frees the space of whole files at once. Compaction removes the rest.
  const rocksdb::Slice last(end);
  const rocksdb::RangePtr all(nullptr, &last);
  rocksdb::DeleteFilesInRanges(&database_->db(), family_, &all, 1).PermitUncheckedError();
}

void Table::commit(rocksdb::WriteBatch& batch, int64_t num_rows,
                   const std::function<void()>& remember) {
  check_done("write", batch.Put(database_->catalogue(), Database::rows_key(options_.name),
                                Database::encode_num_rows(num_rows)));
  rocksdb::WriteOptions options;
  options.sync = options_.sync_writes;
  // The batch is sorted: the position of one row is a hint for the next one.
  options.memtable_insert_hint_per_batch = true;
  const rocksdb::Status status = database_->write(options, batch);
  if (!status.ok()) {
    // The log may contain the batch or not, so the known keys are no longer reliable.
    known_.clear(false);
    num_rows_ = database_->read_num_rows(options_.name);
    check_done("write", status);
  }
  num_rows_ = num_rows;
  remember();
}

void Table::scan(SparringScan& call) {
  border::check(call.cursor[1] == 0, "cursor must be zero or the cursor of the previous chunk",
                call.cursor[1]);
  if (call.cursor[0] == 0) database_->catch_up();
  rocksdb::ReadOptions options;
  options.fill_cache = false;  // a full scan would evict frequently used blocks
  const std::unique_ptr<rocksdb::Iterator> rows(database_->db().NewIterator(options, family_));
  // The cursor is the code from which to continue: zero is the code of the lowest key.
  const KeyBytes start(call.cursor[0]);
  const uint64_t wanted = call.columns.end - call.columns.begin;
  auto* out = static_cast<char*>(call.rows);
  int64_t count = 0;
  for (rows->Seek(slice(start)); rows->Valid() && count < call.capacity; rows->Next(), ++count) {
    const uint64_t code = KeyBytes::code(rows->key().data());
    if (rows->value().size() != options_.row_bytes) {
      throw StatusError(SPARRING_CORRUPT,
                        asked("scan") + ": the row of key " + std::to_string(key_of(code)) +
                            " has " + std::to_string(rows->value().size()) +
                            " bytes; restore a checkpoint or snapshot");
    }
    call.keys[count] = key_of(code);
    if (out != nullptr) {
      std::memcpy(out + static_cast<uint64_t>(count) * wanted,
                  rows->value().data() + call.columns.begin, wanted);
    }
    if (call.scores != nullptr) call.scores[count] = 0;
  }
  check_done("scan", rows->status());
  call.count = count;
  call.is_done = !rows->Valid();
  if (rows->Valid()) call.cursor[0] = KeyBytes::code(rows->key().data());
}

void Table::stat(SparringStat& call) {
  call.capabilities = SPARRING_CONCURRENT_READS | SPARRING_PERSISTENT;
  call.row_bytes = options_.row_bytes;
  if (database_->is_secondary()) {
    database_->catch_up();
    num_rows_ = database_->read_num_rows(options_.name);
  }
  call.size = num_rows_;
  call.capacity = -1;
  call.memory_bytes = database_->memory_bytes(family_) + known_.memory_bytes();
}

void Table::flush() {
  if (database_->is_secondary()) return;
  check_done("flush", database_->sync_log());
}

void Table::check_done(const char* what, const rocksdb::Status& status) const {
  if (!status.ok()) check(status, asked(what));
}

std::string Table::asked(const char* what) const {
  return std::string(what) + " in table '" + options_.name + "' of " + database_->folder();
}

}  // namespace sparring::flash
