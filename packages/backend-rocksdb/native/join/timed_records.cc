#include "timed_records.h"

#include <rocksdb/cache.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>

#include "database_options.h"
#include "plain_log.h"
#include "status.h"

namespace sparring::flash {
namespace {

constexpr size_t kTimeBytes = 8;
constexpr uint64_t kSign = uint64_t{1} << 63;

// Bytes in the order of the times: big-endian, with the sign bit inverted, and all bits of negative
// times.
std::string encode_time(double time) {
  uint64_t bits = std::bit_cast<uint64_t>(time + 0.0);  // 0.0 for -0.0
  bits ^= (bits & kSign) != 0 ? ~uint64_t{0} : kSign;
  std::string bytes(kTimeBytes, '\0');
  for (size_t i = 0; i < kTimeBytes; ++i) {
    bytes[i] = static_cast<char>(bits >> (8 * (kTimeBytes - 1 - i)));
  }
  return bytes;
}

double decode_time(const char* bytes) {
  uint64_t bits = 0;
  for (size_t i = 0; i < kTimeBytes; ++i) {
    bits = bits << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return std::bit_cast<double>(bits ^ ((bits & kSign) != 0 ? kSign : ~uint64_t{0}));
}

}  // namespace

TimedRecords::TimedRecords(const std::string& folder, uint64_t block_cache_bytes,
                           uint64_t write_buffer_bytes, const std::string& compression)
    : folder_(folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw StatusError(SPARRING_IO, asked("open the records") + ": the folder cannot be created (" +
                                       error.message() + "); choose a folder that can be written");
  }
  DatabaseOptions options;
  options.write_buffer_bytes = write_buffer_bytes;
  options.compression = compression;
  rocksdb::DBOptions db_options = database_options(options);
  db_options.info_log = std::make_shared<PlainLog>(folder);
  // Open files hold their indexes and filters in the cache, whose size is limited, but not their own state.
  db_options.max_open_files = 256;
  // One shard, because the filter of a file can be larger than one of many shards, and would then be read
  // again by each lookup. One thread uses the cache.
  const auto family = family_options(options, rocksdb::NewLRUCache(block_cache_bytes, 0));
  db_options.create_missing_column_families = true;
  rocksdb::DB* db = nullptr;
  check(rocksdb::DB::Open(db_options, folder,
                          {{rocksdb::kDefaultColumnFamilyName, family}, {"records", family}},
                          &families_, &db),
        asked("open the records"));
  db_.reset(db);
}

TimedRecords::~TimedRecords() {
  for (rocksdb::ColumnFamilyHandle* each : families_) {
    db_->DestroyColumnFamilyHandle(each).PermitUncheckedError();
  }
  db_->Close().PermitUncheckedError();
}

std::vector<std::optional<TimedRecord>> TimedRecords::get(
    const std::vector<std::string>& keys) const {
  const std::vector<rocksdb::Slice> wanted(keys.begin(), keys.end());
  std::vector<std::string> times;
  const auto found =
      db_->MultiGet({}, std::vector(wanted.size(), families_[0]), wanted, &times);
  std::vector<std::optional<TimedRecord>> result(keys.size());
  std::vector<size_t> places;
  std::vector<std::string> names;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found[i].IsNotFound()) continue;
    check(found[i], asked("read a record"));
    places.push_back(i);
    names.push_back(times[i] + keys[i]);
  }
  const std::vector<rocksdb::Slice> named(names.begin(), names.end());
  std::vector<std::string> values;
  const auto read = db_->MultiGet({}, std::vector(named.size(), families_[1]), named, &values);
  for (size_t i = 0; i < places.size(); ++i) {
    check(read[i], asked("read a record"));
    result[places[i]] =
        TimedRecord{keys[places[i]], decode_time(names[i].data()), std::move(values[i])};
  }
  return result;
}

void TimedRecords::write(const std::vector<std::pair<std::string, double>>& removed,
                         const std::vector<TimedRecord>& added) {
  rocksdb::WriteBatch batch;
  for (const auto& [key, time] : removed) {
    check(batch.Delete(families_[0], key), asked("write records"));
    check(batch.Delete(families_[1], encode_time(time) + key), asked("write records"));
  }
  for (const TimedRecord& each : added) {
    const std::string time = encode_time(each.time);
    check(batch.Put(families_[0], each.key, time), asked("write records"));
    check(batch.Put(families_[1], time + each.key, each.value), asked("write records"));
  }
  rocksdb::WriteOptions unlogged;
  unlogged.disableWAL = true;
  check(db_->Write(unlogged, &batch), asked("write records"));
}

std::vector<TimedRecord> TimedRecords::scan(double after, double until,
                                            size_t max_records) const {
  std::vector<TimedRecord> found;
  const std::string last = encode_time(until);
  rocksdb::ReadOptions options;
  options.fill_cache = false;  // Records are usually scanned once.
  const std::unique_ptr<rocksdb::Iterator> records(db_->NewIterator(options, families_[1]));
  records->Seek(encode_time(std::nextafter(after, std::numeric_limits<double>::infinity())));
  for (; records->Valid() && found.size() < max_records; records->Next()) {
    const rocksdb::Slice key = records->key();
    if (rocksdb::Slice(key.data(), kTimeBytes).compare(last) > 0) break;
    found.push_back({std::string(key.data() + kTimeBytes, key.size() - kTimeBytes),
                     decode_time(key.data()), records->value().ToString()});
  }
  check(records->status(), asked("scan the records"));
  return found;
}

void TimedRecords::checkpoint(const std::string& folder) const {
  rocksdb::Checkpoint* made = nullptr;
  check(db_->Flush(rocksdb::FlushOptions(), families_), asked("checkpoint"));
  check(rocksdb::Checkpoint::Create(db_.get(), &made), asked("checkpoint"));
  const std::unique_ptr<rocksdb::Checkpoint> owned(made);
  check(owned->CreateCheckpoint(folder), asked("checkpoint"));
}

}  // namespace sparring::flash
