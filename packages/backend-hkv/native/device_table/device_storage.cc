#include "device_storage.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "sparring/storage_border.h"

namespace sparring::hkv {
namespace {

using border::StatusError;

constexpr int32_t kCpu = 1;  // DLPack's device type

bool is_on_host(const SparringCall& call) { return call.device.type == kCpu; }

std::string name_of(const SparringDevice& device) {
  return "(type " + std::to_string(device.type) + ", id " + std::to_string(device.id) + ")";
}

}  // namespace

void DeviceStorage::check_device(const SparringCall& call) const {
  if (is_on_host(call)) return;
  if (call.device.type == place_.type && call.device.id == place_.id) return;
  throw StatusError(SPARRING_INVALID_ARGUMENT,
                    "device must be " + name_of(place_) + ", where this table is, or the CPU "
                    "(type 1); found " + name_of(call.device) + "; copy the arrays there");
}

// Copies of the arrays of one call on the device, all on the table's own stream.
class DeviceStorage::Staging {
 public:
  explicit Staging(DeviceStorage& storage)
      : device_(*storage.device_),
        departing_(storage.departing_),
        place_(storage.place_),
        stream_(storage.table_.stream()) {}

  // The arguments for the table, for the call of a user.
  SparringCall call(const SparringCall& asked) const {
    SparringCall call = asked;
    call.device = place_;
    call.stream = stream_;
    return call;
  }

  template <class T>
  T* take(uint64_t count) {
    buffers_.push_back(device::make_buffer<T>(device_, count, stream_));
    return buffers_.back().as<T>();
  }
  // Returns NULL for NULL.
  template <class T>
  const T* bring(const T* from, uint64_t count) {
    if (from == nullptr) return nullptr;
    T* const to = take<T>(count);
    device_.write(to, from, count * sizeof(T), stream_);
    return to;
  }
  // Copies rows of `bytes` with distance `stride` to a dense array.
  const void* bring_rows(const void* from, uint64_t count, uint64_t bytes, uint64_t stride) {
    if (stride == bytes) return bring(static_cast<const char*>(from), count * bytes);
    std::vector<char> dense(count * bytes);
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(dense.data() + i * bytes, static_cast<const char*>(from) + i * stride, bytes);
    }
    return bring(dense.data(), dense.size());
  }
  // Available after wait() has returned.
  template <class T>
  void send(T* to, const T* from, uint64_t count) {
    if (to != nullptr) device_.copy(to, from, count * sizeof(T), stream_);
  }
  void wait() { device_.wait(stream_); }

  SparringEvictionSink sink(const SparringEvictionSink& asked, uint64_t row_bytes) {
    if (asked.receive == nullptr) return asked;
    asked_sink_ = asked;
    row_bytes_ = row_bytes;
    return {&Staging::receive, this};
  }

 private:
  static int32_t receive(void* context, int64_t count, const int64_t* keys, const void* rows,
                         const uint64_t* scores) {
    auto& self = *static_cast<Staging*>(context);
    const auto size = static_cast<size_t>(count);
    try {
      std::vector<int64_t> host_keys(size);
      std::vector<char> host_rows(size * self.row_bytes_);
      std::vector<uint64_t> host_scores(size);
      self.departing_.read({{host_keys.data(), keys, size * sizeof(int64_t)},
                            {host_rows.data(), rows, host_rows.size()},
                            {host_scores.data(), scores, size * sizeof(uint64_t)}},
                           self.stream_);
      return self.asked_sink_.receive(self.asked_sink_.context, count, host_keys.data(),
                                      host_rows.data(), host_scores.data());
    } catch (const std::bad_alloc&) {
      return 1;  // the rows were evicted; the table reports the error
    }
  }

  device::Device& device_;
  device::ReadBack& departing_;
  SparringDevice place_;
  device::Stream stream_;
  std::vector<device::Buffer> buffers_;
  SparringEvictionSink asked_sink_{};
  uint64_t row_bytes_ = 0;
};

void DeviceStorage::find(SparringFind& call) {
  if (!is_on_host(call.call)) return table_.find(call);
  if (call.count == 0) return;
  table_.guard("find", [&] {
    const auto count = static_cast<uint64_t>(call.count);
    const uint64_t bytes = call.columns.end - call.columns.begin;
    Staging staging(*this);
    SparringFind staged = call;
    staged.call = staging.call(call.call);
    staged.keys = staging.bring(call.keys, count);
    staged.rows = staging.take<char>(count * bytes);
    staged.row_stride = bytes;
    staged.found = staging.take<uint8_t>(count);
    table_.find(staged);
    staging.send(call.found, staged.found, count);
    auto* const out = static_cast<char*>(call.rows);
    if (call.row_stride == bytes) {
      staging.send(out, static_cast<const char*>(staged.rows), count * bytes);
      return staging.wait();
    }
    std::vector<char> dense(count * bytes);
    staging.send(dense.data(), static_cast<const char*>(staged.rows), dense.size());
    staging.wait();
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(out + i * call.row_stride, dense.data() + i * bytes, bytes);
    }
  });
}

void DeviceStorage::visit(SparringVisit& call) {
  if (!is_on_host(call.call)) return table_.visit(call);
  const uint64_t bytes = call.columns.end - call.columns.begin;
  constexpr int64_t kBlock = 4096;
  std::vector<char> rows(static_cast<size_t>(std::min(call.count, kBlock)) * bytes);
  uint8_t found[kBlock];
  const void* shown[kBlock];
  for (int64_t at = 0; at < call.count; at += kBlock) {
    const int64_t count = std::min(kBlock, call.count - at);
    SparringFind asked{call.call, count, call.keys + at, call.columns, rows.data(), bytes, found};
    find(asked);
    for (int64_t i = 0; i < count; ++i) {
      shown[i] = found[i] != 0 ? rows.data() + static_cast<size_t>(i) * bytes : nullptr;
    }
    const int32_t answer = call.show(call.context, at, count, shown);
    if (answer != 0) {
      throw StatusError(SPARRING_INTERNAL,
                        "the visitor of the rows returned " + std::to_string(answer) + ", expected 0");
    }
  }
}

void DeviceStorage::upsert(SparringUpsert& call) {
  if (!is_on_host(call.call)) return table_.upsert(call);
  table_.guard("upsert", [&] {
    const auto count = static_cast<uint64_t>(call.count);
    Staging staging(*this);
    SparringUpsert staged = call;
    staged.call = staging.call(call.call);
    staged.keys = staging.bring(call.keys, count);
    staged.rows = staging.bring_rows(call.rows, count, row_bytes(), call.row_stride);
    staged.row_stride = row_bytes();
    staged.scores = staging.bring(call.scores, count);
    staged.evicted = staging.sink(call.evicted, row_bytes());
    table_.upsert(staged);
    staging.wait();
  });
}

// `change` is a host function here, so rows are copied: found, changed, upserted.
void DeviceStorage::update(SparringUpdate& call) {
  if (!is_on_host(call.call)) return table_.update(call);
  const auto count = static_cast<size_t>(call.count);
  const uint64_t bytes = row_bytes();
  std::vector<char> rows(count * bytes);
  std::vector<uint8_t> found(count);
  SparringFind asked{call.call, call.count, call.keys, {0, bytes}, rows.data(), bytes, found.data()};
  find(asked);

  std::vector<int64_t> missing;
  for (size_t i = 0; i < count; ++i) {
    if (found[i] == 0) missing.push_back(static_cast<int64_t>(i));
  }
  std::vector<uint8_t> is_admitted(missing.size(), 1);
  if (call.admit != nullptr && !missing.empty()) {
    const int32_t answer = call.admit(call.context, static_cast<int64_t>(missing.size()),
                                      missing.data(), is_admitted.data());
    if (answer != 0) {
      throw StatusError(SPARRING_INTERNAL,
                        "the admission of new keys returned " + std::to_string(answer) + ", expected 0");
    }
  }

  // Rejected keys are removed, so that the keys to upsert are contiguous.
  std::vector<int64_t> keys, positions;
  std::vector<uint64_t> scores;
  std::vector<uint8_t> is_new;
  std::vector<void*> pointers;
  size_t next_missing = 0;
  call.inserted = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool is_missing = found[i] == 0;
    if (is_missing && is_admitted[next_missing++] == 0) continue;
    char* const to = rows.data() + keys.size() * bytes;
    if (keys.size() != i) std::memcpy(to, rows.data() + i * bytes, bytes);
    keys.push_back(call.keys[i]);
    positions.push_back(static_cast<int64_t>(i));
    if (call.scores != nullptr) scores.push_back(call.scores[i]);
    is_new.push_back(is_missing ? 1 : 0);
    pointers.push_back(to);
    call.inserted += is_missing;
  }
  border::parallel_for(call.call.executor, static_cast<int64_t>(keys.size()), 512,
               [&](int64_t begin, int64_t end) {
                 call.change(call.context, end - begin, positions.data() + begin,
                             pointers.data() + begin, is_new.data() + begin);
               });
  SparringUpsert written{call.call,
                         static_cast<int64_t>(keys.size()),
                         keys.data(),
                         rows.data(),
                         bytes,
                         call.scores != nullptr ? scores.data() : nullptr,
                         call.evicted};
  upsert(written);
}

void DeviceStorage::erase(SparringErase& call) {
  if (!is_on_host(call.call)) return table_.erase(call);
  table_.guard("erase", [&] {
    Staging staging(*this);
    SparringErase staged = call;
    staged.call = staging.call(call.call);
    staged.keys = staging.bring(call.keys, static_cast<uint64_t>(call.count));
    table_.erase(staged);
    call.erased = staged.erased;
  });
}

void DeviceStorage::touch(SparringTouch& call) {
  if (!is_on_host(call.call)) return table_.touch(call);
  table_.guard("touch", [&] {
    const auto count = static_cast<uint64_t>(call.count);
    Staging staging(*this);
    SparringTouch staged = call;
    staged.call = staging.call(call.call);
    staged.keys = staging.bring(call.keys, count);
    staged.scores = staging.bring(call.scores, count);
    table_.touch(staged);
    staging.wait();
  });
}

void DeviceStorage::evict(SparringEvict& call) {
  if (!is_on_host(call.call)) return table_.evict(call);
  table_.guard("evict", [&] {
    Staging staging(*this);
    SparringEvict staged = call;
    staged.call = staging.call(call.call);
    staged.sink = staging.sink(call.sink, row_bytes());
    table_.evict(staged);
    call.evicted = staged.evicted;
  });
}

void DeviceStorage::scan(SparringScan& call) {
  if (!is_on_host(call.call)) return table_.scan(call);
  table_.guard("scan", [&] {
    const auto capacity = static_cast<uint64_t>(call.capacity);
    const uint64_t bytes = call.columns.end - call.columns.begin;
    Staging staging(*this);
    SparringScan staged = call;
    staged.call = staging.call(call.call);
    staged.keys = staging.take<int64_t>(capacity);
    if (call.rows != nullptr) staged.rows = staging.take<char>(capacity * bytes);
    if (call.scores != nullptr) staged.scores = staging.take<uint64_t>(capacity);
    table_.scan(staged);
    const auto count = static_cast<uint64_t>(staged.count);
    staging.send(call.keys, staged.keys, count);
    staging.send(static_cast<char*>(call.rows), static_cast<const char*>(staged.rows),
                 count * bytes);
    staging.send(call.scores, staged.scores, count);
    staging.wait();
    call.count = staged.count;
    call.is_done = staged.is_done;
    call.cursor[0] = staged.cursor[0];
    call.cursor[1] = staged.cursor[1];
  });
}

}  // namespace sparring::hkv
