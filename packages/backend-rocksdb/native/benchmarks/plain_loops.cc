// Measures a table and plain loops over RocksDB's API alternately, in one process and on one database,
// for benchmarks/rocksdb.py. After "ready", each line of standard input names a workload; the reply is
// the time per row in nanoseconds and the number of bytes read from files.
//
//   plain_loops FOLDER ROWS ROW_BYTES KEYS THREADS CACHE_BYTES KNOWN_KEYS_BYTES DIRECT_IO
//
// find          KEYS random keys in any order, through storage_abi.h, on one thread
// find_threads  the same on THREADS threads
// find_plain    a loop of MultiGet over the same number of keys, sorted before
// upsert        KEYS random existing rows, in any order, through storage_abi.h
// upsert_plain  a loop of WriteBatch and Write over the same number of rows
// fill, fill_plain  ROWS rows into an empty table; must come first
//
// Both have a separate table with the same rows in one database, so they share its cache, log and
// threads.
#include <rocksdb/write_batch.h>

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "database.h"
#include "storage.h"
#include "table.h"
#include "thread_executor.h"

using namespace sparring::flash;

namespace {

constexpr size_t kKeysPerGet = 128;
constexpr size_t kRowsPerBatch = 4096;

struct Settings {
  uint64_t num_rows, row_bytes, num_keys, known_keys_bytes;
  int num_threads;
};

// Requests huge pages, as NumPy does for large arrays, because rows are accessed at random.
template <class T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <class Other>
  explicit HugePages(const HugePages<Other>&) {}
  T* allocate(size_t count) {
    constexpr size_t kPage = size_t{2} << 20;
    const size_t bytes = (count * sizeof(T) + kPage - 1) / kPage * kPage;
    void* made = std::aligned_alloc(kPage, bytes);
    if (made == nullptr) throw std::bad_alloc();
    madvise(made, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(made);
  }
  void deallocate(T* made, size_t) { std::free(made); }
  friend bool operator==(const HugePages&, const HugePages&) { return true; }
};
using Bytes = std::vector<char, HugePages<char>>;

// The inputs of both contenders: the same keys and the same rows.
class Inputs {
 public:
  explicit Inputs(const Settings& settings)
      : all(settings.num_rows), keys(settings.num_keys), row_bytes_(settings.row_bytes) {
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i) * 7919;
    std::shuffle(all.begin(), all.end(), random_);
  }

  // Distinct keys: a random range of a shuffled list.
  void choose() {
    const size_t begin = random_() % (all.size() - keys.size() + 1);
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(begin), keys.size(), keys.begin());
    std::shuffle(keys.begin(), keys.end(), random_);
    sorted = keys;
    std::sort(sorted.begin(), sorted.end());
  }

  // (n, row_bytes): incompressible rows.
  const Bytes& rows_for(size_t count) {
    rows_.resize(count * row_bytes_);
    uint64_t word = random_();
    for (size_t at = 0; at + 8 <= rows_.size(); at += 8) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(rows_.data() + at, &word, 8);
    }
    return rows_;
  }

  std::vector<int64_t> all, keys, sorted;

 private:
  uint64_t row_bytes_;
  std::mt19937_64 random_{7};
  Bytes rows_;
};

rocksdb::Slice slice(const KeyBytes& key) { return {key.data(), KeyBytes::size()}; }

class Plain {
 public:
  Plain(Database& database, uint64_t row_bytes)
      : db_(database.db()), family_(database.take("plain", "bytes")), row_bytes_(row_bytes) {}

  void find(const std::vector<int64_t>& sorted, Bytes& out) {
    std::vector<KeyBytes> bytes(kKeysPerGet);
    std::vector<rocksdb::Slice> keys(kKeysPerGet);
    std::vector<rocksdb::PinnableSlice> values(kKeysPerGet);
    std::vector<rocksdb::Status> statuses(kKeysPerGet);
    for (size_t begin = 0; begin < sorted.size(); begin += kKeysPerGet) {
      const size_t count = std::min(kKeysPerGet, sorted.size() - begin);
      for (size_t i = 0; i < count; ++i) {
        bytes[i] = KeyBytes(code_of(sorted[begin + i]));
        keys[i] = slice(bytes[i]);
      }
      db_.MultiGet({}, family_, count, keys.data(), values.data(), statuses.data(), true);
      for (size_t i = 0; i < count; ++i) {
        CHECK(statuses[i].ok());
        std::memcpy(out.data() + (begin + i) * row_bytes_, values[i].data(), row_bytes_);
        values[i].Reset();
      }
    }
  }

  void upsert(const std::vector<int64_t>& keys, const Bytes& rows) {
    for (size_t begin = 0; begin < keys.size(); begin += kRowsPerBatch) {
      rocksdb::WriteBatch batch;
      for (size_t i = begin; i < std::min(keys.size(), begin + kRowsPerBatch); ++i) {
        const KeyBytes key(code_of(keys[i]));
        CHECK(batch.Put(family_, slice(key), {rows.data() + i * row_bytes_, row_bytes_}).ok());
      }
      CHECK(db_.Write({}, &batch).ok());
    }
  }

 private:
  rocksdb::DB& db_;
  rocksdb::ColumnFamilyHandle* family_;
  uint64_t row_bytes_;
};

class Ours {
 public:
  Ours(const std::shared_ptr<Database>& database, const Settings& settings)
      : row_bytes_(settings.row_bytes),
        executor_(settings.num_threads),
        storage_(make_storage(
            std::make_shared<Table>(
                database, TableOptions{.name = "ours",
                                       .label = "bytes",
                                       .row_bytes = settings.row_bytes,
                                       .known_keys_bytes = settings.known_keys_bytes}),
            "benchmark")) {}
  ~Ours() { storage_->release(storage_); }

  void find(const std::vector<int64_t>& keys, Bytes& out, bool with_threads) {
    found_.resize(keys.size());
    auto call = arguments<SparringFind>(keys, with_threads);
    call.columns = {0, row_bytes_};
    call.rows = out.data();
    call.row_stride = row_bytes_;
    call.found = found_.data();
    check_ok(storage_->find(storage_->self, &call), call.call);
  }

  void upsert(const std::vector<int64_t>& keys, const Bytes& rows) {
    auto call = arguments<SparringUpsert>(keys, false);
    call.rows = rows.data();
    call.row_stride = row_bytes_;
    check_ok(storage_->upsert(storage_->self, &call), call.call);
  }

 private:
  template <class Arguments>
  Arguments arguments(const std::vector<int64_t>& keys, bool with_threads) {
    Arguments made{};
    made.call.struct_bytes = sizeof(Arguments);
    made.call.device = {1, 0};
    made.call.executor = with_threads ? executor_.get() : nullptr;
    made.count = static_cast<int64_t>(keys.size());
    made.keys = keys.data();
    return made;
  }

  static void check_ok(SparringStatus status, const SparringCall& call) {
    if (status == SPARRING_OK) return;
    std::cerr << call.error.message << "\n";
    std::exit(1);
  }

  uint64_t row_bytes_;
  sparring::testing::ThreadExecutor executor_;
  SparringStorage* storage_;
  std::vector<uint8_t> found_;
};

// Bytes that this process has read from files, with any system call.
uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  for (std::string name; io >> name;) {
    uint64_t count = 0;
    io >> count;
    if (name == "rchar:") return count;
  }
  return 0;
}

class Session {
 public:
  Session(const std::string& folder, const Settings& settings, const DatabaseOptions& options)
      : database_(Database::open(folder, options)),
        inputs_(settings),
        out_(settings.num_keys * settings.row_bytes),
        plain_out_(out_.size()),
        plain_(*database_, settings.row_bytes),
        ours_(database_, settings) {}

  // Nanoseconds per row.
  double run(const std::string& work) {
    inputs_.choose();
    const bool fills = work.starts_with("fill");
    const Bytes& rows =
        inputs_.rows_for(fills ? inputs_.all.size() : work.starts_with("upsert") ? inputs_.keys.size() : 0);
    const std::vector<int64_t>& keys = fills ? inputs_.all : inputs_.keys;
    const auto start = std::chrono::steady_clock::now();
    if (work == "find") ours_.find(keys, out_, false);
    if (work == "find_threads") ours_.find(keys, out_, true);
    if (work == "find_plain") plain_.find(inputs_.sorted, plain_out_);
    if (work == "upsert" || work == "fill") ours_.upsert(keys, rows);
    if (work == "upsert_plain" || work == "fill_plain") plain_.upsert(keys, rows);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    return time.count() / static_cast<double>(keys.size());
  }

  // Checks that both tables contain and return the same rows from here on.
  void check_agreement() {
    inputs_.choose();
    const auto& rows = inputs_.rows_for(inputs_.keys.size());
    ours_.upsert(inputs_.keys, rows);
    plain_.upsert(inputs_.keys, rows);
    plain_.find(inputs_.sorted, plain_out_);
    for (const bool with_threads : {false, true}) {
      std::fill(out_.begin(), out_.end(), '\0');
      ours_.find(inputs_.sorted, out_, with_threads);
      CHECK(out_ == plain_out_);
    }
    ours_.find(inputs_.keys, out_, true);
    CHECK(out_ == rows);
  }

  // Flushes and compacts both tables.
  void settle() {
    for (const char* table : {"ours", "plain"}) {
      CHECK(database_->db().CompactRange({}, database_->family(table), nullptr, nullptr).ok());
    }
  }

 private:
  std::shared_ptr<Database> database_;
  Inputs inputs_;
  Bytes out_, plain_out_;
  Plain plain_;
  Ours ours_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::cerr << "usage: plain_loops FOLDER ROWS ROW_BYTES KEYS THREADS CACHE_BYTES "
                 "KNOWN_KEYS_BYTES DIRECT_IO\n";
    return 2;
  }
  const Settings settings{.num_rows = std::stoull(argv[2]),
                          .row_bytes = std::stoull(argv[3]),
                          .num_keys = std::stoull(argv[4]),
                          .known_keys_bytes = std::stoull(argv[7]),
                          .num_threads = std::stoi(argv[5])};
  DatabaseOptions options;
  options.block_cache_bytes = std::stoull(argv[6]);
  options.direct_io = argv[8] == std::string("1");
  Session session(argv[1], settings, options);
  std::cout << "ready" << std::endl;
  for (std::string work; std::getline(std::cin, work);) {
    if (work == "check") session.check_agreement();
    if (work == "settle") session.settle();
    const uint64_t before = bytes_read();
    const double nanoseconds = session.run(work);
    const auto read = static_cast<double>(bytes_read() - before);
    std::cout << nanoseconds << ' ' << read / static_cast<double>(settings.num_keys) << std::endl;
  }
}
