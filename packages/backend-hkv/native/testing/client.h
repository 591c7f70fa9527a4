// A C++ client of the C ABI. Rows are vectors of bytes.
#ifndef SPARRING_HKV_TESTING_CLIENT_H_
#define SPARRING_HKV_TESTING_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "storage.h"
#include "table.h"

namespace sparring::hkv::testing {

using Keys = std::vector<int64_t>;
using Scores = std::vector<uint64_t>;
using Bytes = std::vector<char>;

struct Held {
  Bytes row;
  uint64_t score;

  friend bool operator==(const Held&, const Held&) = default;
};
using Rows = std::map<int64_t, Held>;

// Returns bytes that are unique to this key and version.
inline Bytes make_row(int64_t key, uint64_t version, uint64_t row_bytes) {
  Bytes row(row_bytes);
  uint64_t x = static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15u + version;
  for (char& byte : row) {
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    byte = static_cast<char>(x >> 56);
  }
  return row;
}

// Collects evicted rows.
struct Sink {
  uint64_t row_bytes;
  std::vector<std::pair<int64_t, Held>>* evicted;

  static int32_t receive(void* context, int64_t count, const int64_t* keys, const void* rows,
                         const uint64_t* scores) {
    auto* self = static_cast<Sink*>(context);
    const char* row = static_cast<const char*>(rows);
    for (int64_t i = 0; i < count; ++i, row += self->row_bytes) {
      self->evicted->push_back({keys[i], {Bytes(row, row + self->row_bytes), scores[i]}});
    }
    return 0;
  }
};

class Client {
 public:
  explicit Client(const TableOptions& options, const SparringExecutor* executor = nullptr,
                  const Kernels* kernels = available_kernels().front())
      : Client(make_storage(std::make_unique<Table>(options, kernels), "test 0.1.0"),
               options.row_bytes, executor) {}
  // Takes ownership of the storage.
  Client(SparringStorage* storage, uint64_t row_bytes, const SparringExecutor* executor = nullptr)
      : row_bytes_(row_bytes),
        executor_(executor),
        storage_(storage, [](SparringStorage* owned) { owned->release(owned); }) {}

  // Sets the device of the arrays of all later calls.
  void set_device(const SparringDevice& device) { device_ = device; }

  SparringStorage* get() const { return storage_.get(); }
  uint64_t row_bytes() const { return row_bytes_; }

  template <class Arguments>
  Arguments arguments() const {
    Arguments arguments{};
    arguments.call.struct_bytes = sizeof(Arguments);
    arguments.call.device = device_;
    arguments.call.executor = executor_;
    return arguments;
  }

  template <class Arguments>
  SparringStatus call(SparringStatus (*callback)(void*, Arguments*), Arguments& arguments) {
    const SparringStatus status = callback(storage_->self, &arguments);
    message_.clear();
    if (status != SPARRING_OK) {
      CHECK(arguments.call.error.message != nullptr);
      message_ = arguments.call.error.message;
      if (arguments.call.error.release != nullptr) {
        arguments.call.error.release(&arguments.call.error);
      }
    }
    return status;
  }
  // The message of the last call that failed.
  const std::string& message() const { return message_; }

  // Returns the rows of the keys in order; a missing row is empty.
  std::vector<Bytes> find(const Keys& keys) {
    const uint64_t stride = row_bytes_ + 3;  // unaligned on purpose
    Bytes rows(keys.size() * stride, 'x');
    std::vector<uint8_t> found(keys.size(), 7);
    auto arguments = this->arguments<SparringFind>();
    arguments.count = static_cast<int64_t>(keys.size());
    arguments.keys = keys.data();
    arguments.columns = {0, row_bytes_};
    arguments.rows = rows.data();
    arguments.row_stride = stride;
    arguments.found = found.data();
    CHECK(call(storage_->find, arguments) == SPARRING_OK);
    std::vector<Bytes> result;
    for (size_t i = 0; i < keys.size(); ++i) {
      const Bytes row(rows.data() + i * stride, rows.data() + i * stride + row_bytes_);
      CHECK(found[i] <= 1);
      CHECK(found[i] == 1 || row == Bytes(row_bytes_, 0));
      for (uint64_t byte = row_bytes_; byte < stride; ++byte) CHECK(rows[i * stride + byte] == 'x');
      result.push_back(found[i] == 1 ? row : Bytes());
    }
    return result;
  }

  // The row of each key is make_row(key, version).
  SparringStatus upsert(const Keys& keys, uint64_t version, const Scores* scores = nullptr,
                        std::vector<std::pair<int64_t, Held>>* evicted = nullptr) {
    Bytes rows;
    for (const int64_t key : keys) {
      const Bytes row = make_row(key, version, row_bytes_);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    auto arguments = this->arguments<SparringUpsert>();
    arguments.count = static_cast<int64_t>(keys.size());
    arguments.keys = keys.data();
    arguments.rows = rows.data();
    arguments.row_stride = row_bytes_;
    arguments.scores = scores == nullptr ? nullptr : scores->data();
    Sink sink{row_bytes_, evicted};
    if (evicted != nullptr) arguments.evicted = {&Sink::receive, &sink};
    return call(storage_->upsert, arguments);
  }

  int64_t erase(const Keys& keys) {
    auto arguments = this->arguments<SparringErase>();
    arguments.count = static_cast<int64_t>(keys.size());
    arguments.keys = keys.data();
    CHECK(call(storage_->erase, arguments) == SPARRING_OK);
    return arguments.erased;
  }

  SparringStatus touch(const Keys& keys, const Scores* scores = nullptr) {
    auto arguments = this->arguments<SparringTouch>();
    arguments.count = static_cast<int64_t>(keys.size());
    arguments.keys = keys.data();
    arguments.scores = scores == nullptr ? nullptr : scores->data();
    return call(storage_->touch, arguments);
  }

  std::vector<std::pair<int64_t, Held>> evict(int64_t wanted) {
    std::vector<std::pair<int64_t, Held>> evicted;
    Sink sink{row_bytes_, &evicted};
    auto arguments = this->arguments<SparringEvict>();
    arguments.wanted = wanted;
    arguments.sink = {&Sink::receive, &sink};
    CHECK(call(storage_->evict, arguments) == SPARRING_OK);
    CHECK(arguments.evicted == static_cast<int64_t>(evicted.size()));
    return evicted;
  }

  SparringStatus set_option(const char* name, const char* value) {
    auto arguments = this->arguments<SparringSetOption>();
    arguments.name = name;
    arguments.value = value;
    return call(storage_->set_option, arguments);
  }

  void clear() {
    auto arguments = this->arguments<SparringPlain>();
    CHECK(call(storage_->clear, arguments) == SPARRING_OK);
  }

  SparringStat stat() {
    auto arguments = this->arguments<SparringStat>();
    CHECK(call(storage_->stat, arguments) == SPARRING_OK);
    return arguments;
  }

  // Fails if a key occurs twice.
  Rows scan(int64_t chunk = 1000) {
    Rows all;
    auto arguments = this->arguments<SparringScan>();
    Keys keys(static_cast<size_t>(chunk));
    Scores scores(keys.size());
    Bytes rows(keys.size() * row_bytes_);
    arguments.capacity = chunk;
    arguments.columns = {0, row_bytes_};
    arguments.keys = keys.data();
    arguments.rows = rows.data();
    arguments.scores = scores.data();
    while (arguments.is_done == 0) {
      CHECK(call(storage_->scan, arguments) == SPARRING_OK);
      CHECK(arguments.count <= chunk);
      for (size_t i = 0; i < static_cast<size_t>(arguments.count); ++i) {
        const char* row = rows.data() + i * row_bytes_;
        const bool is_new =
            all.emplace(keys[i], Held{Bytes(row, row + row_bytes_), scores[i]}).second;
        CHECK(is_new);
      }
    }
    return all;
  }

 private:
  uint64_t row_bytes_;
  const SparringExecutor* executor_;
  SparringDevice device_{1, 0};
  std::unique_ptr<SparringStorage, void (*)(SparringStorage*)> storage_;
  std::string message_;
};

}  // namespace sparring::hkv::testing

#endif  // SPARRING_HKV_TESTING_CLIENT_H_
