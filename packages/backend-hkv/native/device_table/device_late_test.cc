// Calls of a table from several streams, on a device whose streams are late: their work begins only
// after the call returned, and a seed determines the order of work that events do not order. Callers
// free their arrays at once, as frameworks do. SPARRING_OPERATIONS sets the length of a sequence.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "check.h"
#include "device/launch.h"
#include "device_client.h"
#include "device_model.h"
#include "sparring/storage_border.h"

namespace {

using namespace sparring::hkv;
using namespace sparring::hkv::testing;
namespace device = sparring::device;

uint64_t num_operations() {
  const char* asked = std::getenv("SPARRING_OPERATIONS");
  return asked == nullptr ? 1000 : std::stoull(asked);
}

// Changes bytes in an update: new rows get the bytes of `made`, existing rows are incremented.
struct ChangeBytes {
  static constexpr unsigned block_threads = 64;
  const int64_t* positions;
  void* const* rows;
  const uint8_t* is_new;
  const char* made;  // (n, row_bytes), by position in the call
  uint64_t count;
  uint64_t row_bytes;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t i = block.thread_in_grid(); i < count; i += block.grid_threads()) {
      char* const row = static_cast<char*>(rows[i]);
      const char* const from = made + static_cast<uint64_t>(positions[i]) * row_bytes;
      for (uint64_t byte = 0; byte < row_bytes; ++byte) {
        row[byte] = is_new[i] != 0 ? from[byte] : static_cast<char>(row[byte] + 1);
      }
    }
  }
};

// A table on a late device, and its model. Each call uses a random stream.
class LateSequence {
 public:
  LateSequence(const DeviceTableOptions& options, uint64_t num_keys, uint64_t seed)
      : options_(options.table),
        num_keys_(num_keys),
        random_(seed),
        device_(device::EmulatedDevice::make_late(seed)),
        table_(std::make_unique<DeviceTable>(*device_, options)),
        model_(options.table) {
    for (device::Stream& stream : streams_) stream = device_->make_stream();
  }
  ~LateSequence() {
    for (const device::Stream stream : streams_) {
      if (stream != nullptr) device_->free_stream(stream);
    }
    found_.clear();
    table_.reset();  // while work of its callers is in progress
  }

  void run(uint64_t num_calls) {
    for (uint64_t i = 0; i < num_calls; ++i) {
      one_call(i);
      while (found_.size() > draw(8)) check_found();
      if (draw(20) == 0) replace_stream();
    }
    while (!found_.empty()) check_found();
    scan_all();
  }

 private:
  struct Found {
    device::Stream stream;
    device::Buffer rows, found;
    std::vector<Bytes> expected;
  };

  uint64_t draw(uint64_t end) { return random_() % end; }
  device::Stream draw_stream() { return streams_[draw(std::size(streams_))]; }

  // Destroys a stream with unfinished work; a new one may have its address.
  void replace_stream() {
    device::Stream& stream = streams_[draw(std::size(streams_))];
    if (stream == nullptr) return;
    while (!found_.empty()) check_found();
    device_->free_stream(stream);
    stream = device_->make_stream();
  }

  Keys draw_keys(uint64_t most) {
    std::set<int64_t> keys;
    const uint64_t count = 1 + draw(std::min(most, num_keys_ / 2));
    while (keys.size() < count) {
      keys.insert(static_cast<int64_t>(draw(num_keys_)) * 0x1234567 - 1000);
    }
    Keys shuffled(keys.begin(), keys.end());
    std::shuffle(shuffled.begin(), shuffled.end(), random_);
    return shuffled;
  }

  template <class T>
  device::Buffer bring(const std::vector<T>& from, device::Stream stream) {
    device::Buffer to = device::make_buffer<T>(*device_, from.size(), stream);
    device_->write(to.template as<void>(), from.data(), from.size() * sizeof(T), stream);
    return to;
  }
  template <class T>
  std::vector<T> fetch(const device::Buffer& from, size_t count, device::Stream stream) {
    std::vector<T> to(count);
    device_->copy(to.data(), from.as<void>(), count * sizeof(T), stream);
    device_->wait(stream);
    return to;
  }
  template <class Arguments>
  Arguments arguments(device::Stream stream) {
    Arguments arguments{};
    arguments.call.struct_bytes = sizeof(Arguments);
    arguments.call.device = kGpu;
    arguments.call.stream = stream;
    return arguments;
  }
  Bytes rows_of(const Keys& keys, uint64_t version) const {
    Bytes rows;
    for (const int64_t key : keys) {
      const Bytes row = make_row(key, version, options_.row_bytes);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }

  void one_call(uint64_t version) {
    const uint64_t kind = draw(100);
    if (kind < 45) return find(draw_keys(60));
    if (kind < 75) return upsert(draw_keys(draw(8) == 0 ? num_keys_ / 2 : 50), version);
    if (kind < 85) return update(draw_keys(50), version);
    if (kind < 94) return erase(draw_keys(40));
    if (kind < 97) return touch(draw_keys(40));
    if (kind < 99) return scan_all();
    if (draw(20) == 0) {
      table_->clear();
      model_.clear();
    }
  }

  void find(const Keys& keys) {
    const device::Stream stream = draw_stream();
    const device::Buffer by_key = bring(keys, stream);
    Found found{stream, device::Buffer(*device_, keys.size() * options_.row_bytes, stream),
                device::Buffer(*device_, keys.size(), stream), {}};
    auto call = arguments<SparringFind>(stream);
    call.count = static_cast<int64_t>(keys.size());
    call.keys = by_key.as<int64_t>();
    call.columns = {0, options_.row_bytes};
    call.rows = found.rows.as<char>();
    call.row_stride = options_.row_bytes;
    call.found = found.found.as<uint8_t>();
    table_->find(call);
    for (const int64_t key : keys) {
      const auto held = model_.rows().find(key);
      found.expected.push_back(held == model_.rows().end() ? Bytes() : held->second.row);
    }
    found_.push_back(std::move(found));
  }

  void check_found() {
    const size_t place = draw(found_.size());
    const Found found = std::move(found_[place]);
    found_.erase(found_.begin() + static_cast<ptrdiff_t>(place));
    const size_t count = found.expected.size();
    const auto rows = fetch<char>(found.rows, count * options_.row_bytes, found.stream);
    const auto flags = fetch<uint8_t>(found.found, count, found.stream);
    for (size_t i = 0; i < count; ++i) {
      const char* const row = rows.data() + i * options_.row_bytes;
      CHECK((flags[i] != 0) == !found.expected[i].empty());
      if (flags[i] != 0) CHECK(Bytes(row, row + options_.row_bytes) == found.expected[i]);
    }
  }

  void upsert(const Keys& keys, uint64_t version) {
    if (!model_.fits(keys)) return;
    const device::Stream stream = draw_stream();
    const device::Buffer by_key = bring(keys, stream);
    const device::Buffer rows = bring(rows_of(keys, version), stream);
    auto call = arguments<SparringUpsert>(stream);
    call.count = static_cast<int64_t>(keys.size());
    call.keys = by_key.as<int64_t>();
    call.rows = rows.as<char>();
    call.row_stride = options_.row_bytes;
    table_->upsert(call);
    model_.upsert(keys, version, nullptr);
  }

  struct Changing {
    LateSequence* self;
    device::Stream stream;
    const char* made;
  };
  void update(const Keys& keys, uint64_t version) {
    if (!model_.fits(keys) || make_device_layout(options_).evicts) return;
    const device::Stream stream = draw_stream();
    const device::Buffer by_key = bring(keys, stream);
    const device::Buffer made = bring(rows_of(keys, version), stream);
    Changing changing{this, stream, made.as<char>()};
    auto call = arguments<SparringUpdate>(stream);
    call.count = static_cast<int64_t>(keys.size());
    call.keys = by_key.as<int64_t>();
    call.context = &changing;
    call.change = [](void* context, int64_t count, const int64_t* positions, void* const* rows,
                     const uint8_t* is_new) {
      const auto& asked = *static_cast<Changing*>(context);
      device::launch(*asked.self->device_, {2}, asked.stream,
                     ChangeBytes{positions, rows, is_new, asked.made, static_cast<uint64_t>(count),
                                 asked.self->options_.row_bytes});
    };
    table_->update(call);
    model_.update(keys, version);
  }

  void erase(const Keys& keys) {
    const device::Stream stream = draw_stream();
    const device::Buffer by_key = bring(keys, stream);
    auto call = arguments<SparringErase>(stream);
    call.count = static_cast<int64_t>(keys.size());
    call.keys = by_key.as<int64_t>();
    table_->erase(call);
    CHECK(call.erased == model_.erase(keys));
  }

  void touch(const Keys& keys) {
    if (!model_.policy().keeps_scores()) return;
    const device::Stream stream = draw_stream();
    const device::Buffer by_key = bring(keys, stream);
    auto call = arguments<SparringTouch>(stream);
    call.count = static_cast<int64_t>(keys.size());
    call.keys = by_key.as<int64_t>();
    table_->touch(call);
    model_.touch(keys, nullptr);
  }

  void scan_all() {
    const device::Stream stream = draw_stream();
    constexpr size_t chunk = 700;
    const device::Buffer keys = device::make_buffer<int64_t>(*device_, chunk, stream);
    const device::Buffer rows(*device_, chunk * options_.row_bytes, stream);
    const device::Buffer scores = device::make_buffer<uint64_t>(*device_, chunk, stream);
    auto call = arguments<SparringScan>(stream);
    call.capacity = chunk;
    call.columns = {0, options_.row_bytes};
    call.keys = keys.as<int64_t>();
    call.rows = rows.as<char>();
    call.scores = scores.as<uint64_t>();
    Rows all;
    while (call.is_done == 0) {
      table_->scan(call);
      const auto count = static_cast<size_t>(call.count);
      const auto found_keys = fetch<int64_t>(keys, count, stream);
      const auto found_rows = fetch<char>(rows, count * options_.row_bytes, stream);
      const auto found_scores = fetch<uint64_t>(scores, count, stream);
      for (size_t i = 0; i < count; ++i) {
        const char* const row = found_rows.data() + i * options_.row_bytes;
        all[found_keys[i]] = {Bytes(row, row + options_.row_bytes), found_scores[i]};
      }
    }
    CHECK(all == model_.rows());
    auto stat = arguments<SparringStat>(stream);
    table_->stat(stat);
    CHECK(stat.size == static_cast<int64_t>(model_.rows().size()));
  }

  TableOptions options_;
  uint64_t num_keys_;
  std::mt19937_64 random_;
  std::unique_ptr<device::EmulatedDevice> device_;
  std::unique_ptr<DeviceTable> table_;
  DeviceModel model_;
  device::Stream streams_[3] = {};
  std::deque<Found> found_;
};

void run_all_seeds(const DeviceTableOptions& options, uint64_t num_keys) {
  for (uint64_t seed = 1; seed < 5; ++seed) {
    LateSequence(options, num_keys, seed).run(num_operations() / 4);
  }
}

void growing_tables() { run_all_seeds(device_options(20), 3000); }
void growing_tables_with_scores() { run_all_seeds(device_options(16, -1, PolicyKind::kLfu), 1500); }
void chaining_tables_within_memory() {
  DeviceTableOptions options = device_options(12);
  options.table.memory_bytes = 40000;
  run_all_seeds(options, 1500);
}
void evicting_tables() { run_all_seeds(device_options(16, 400, PolicyKind::kLru), 1000); }
void tables_whose_rows_spill() {
  DeviceTableOptions options = device_options(256);
  options.device_memory_bytes = 200000;
  run_all_seeds(options, 2000);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"growing tables equal calls in order, on any stream", growing_tables},
      {"the same with scores", growing_tables_with_scores},
      {"the same with chains and a memory limit", chaining_tables_within_memory},
      {"the same with rows in host memory", tables_whose_rows_spill},
      {"the same with eviction", evicting_tables},
  });
}
