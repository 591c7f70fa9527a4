// A libFuzzer target for the storage ABI: calls with valid and invalid arguments, on a table of the
// CPU, compared with a map.
//
//   first five bytes   row_bytes, capacity, policy, kernels, whether there is an executor
//   remaining bytes    a program of calls; each reads as many bytes as it needs
//
// Arrays are always as long as the arguments declare, because a caller that passes shorter ones has
// broken the contract. Counts, columns, strides, devices, cursors, sizes of structs, handles and NULL
// pointers may be anything that the border rejects or ignores. A call that fails must have a message,
// and leave the table unchanged. `python -m fuzz` builds and runs it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "storage.h"
#include "table.h"

using sparring::hkv::PolicyKind;
using sparring::hkv::Table;
using sparring::hkv::TableOptions;

namespace {

void require(bool is_right) {
  if (!is_right) std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}

  bool is_empty() const { return data_ == end_; }
  uint8_t byte() { return is_empty() ? 0 : *data_++; }
  uint64_t word() {
    uint64_t value = 0;
    const size_t size = std::min<size_t>(8, static_cast<size_t>(end_ - data_));
    std::memcpy(&value, data_, size);
    data_ += size;
    return value;
  }
  // Mostly small keys that repeat between calls, sometimes any number.
  int64_t key() {
    const uint8_t first = byte();
    return first < 240 ? static_cast<int64_t>(first % 64) - 8 : static_cast<int64_t>(word());
  }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

using Rows = std::map<int64_t, std::vector<char>>;

// Runs ranges one after the other, but separately, as threads would.
void run_ranges(void*, int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t),
                void* context) {
  const int64_t step = std::max<int64_t>(grain, 1);
  for (int64_t begin = 0; begin < count; begin += step) body(context, begin, std::min(begin + step, count));
}

constexpr SparringExecutor kExecutor = {sizeof(SparringExecutor), nullptr, 2, run_ranges};

class Program {
 public:
  explicit Program(Input& input) : input_(input) {
    constexpr PolicyKind kPolicies[] = {PolicyKind::kNone,     PolicyKind::kLru,      PolicyKind::kLfu,
                                        PolicyKind::kEpochLru, PolicyKind::kEpochLfu, PolicyKind::kCustom};
    TableOptions options;
    options.row_bytes = 1 + input.byte() % 40;
    const uint8_t capacity = input.byte();
    options.capacity = capacity < 128 ? -1 : 1 + (capacity - 128) % 60;
    options.policy = kPolicies[input.byte() % 6];
    const auto kernels = sparring::hkv::available_kernels();
    const auto* const chosen = kernels[input.byte() % kernels.size()];
    executor_ = input.byte() % 2 == 0 ? nullptr : &kExecutor;
    row_bytes_ = options.row_bytes;
    may_evict_ = options.capacity >= 0;
    storage_.reset(sparring::hkv::make_storage(std::make_unique<Table>(options, chosen), "fuzz 0"));
  }

  void run() {
    while (!input_.is_empty()) step();
    check_size();
  }

 private:
  template <class Arguments>
  Arguments arguments() {
    Arguments made{};
    made.call.struct_bytes = sizeof made;
    made.call.device = {1, 0};
    made.call.executor = executor_;
    // One call in 16 has a wrong header.
    const uint8_t choice = input_.byte();
    if (choice < 240) return made;
    if (choice % 3 == 0) made.call.struct_bytes = input_.word();
    if (choice % 3 == 1) made.call.device.type = static_cast<int32_t>(input_.word());
    // Members after these bytes do not exist for a caller of an older revision.
    made.call.struct_bytes = std::min<uint64_t>(made.call.struct_bytes, sizeof made);
    return made;
  }

  template <class Arguments>
  bool call(SparringStatus (*callback)(void*, Arguments*), Arguments& given) {
    if (callback == nullptr) return false;
    const SparringStatus status = callback(storage_->self, &given);
    if (status == SPARRING_OK) return true;
    require(status != SPARRING_INTERNAL);
    require(given.call.error.message != nullptr && given.call.error.message[0] != '\0');
    if (given.call.error.release != nullptr) given.call.error.release(&given.call.error);
    return false;
  }

  void step() {
    const uint8_t kind = input_.byte() % 11;
    read_keys();
    switch (kind) {
      case 0: find(); break;
      case 1: upsert(); break;
      case 2: erase(); break;
      case 3: scan(); break;
      case 4: touch(); break;
      case 5: evict(); break;
      case 6: visit(); break;
      case 7: update(); break;
      case 8: set_option(); break;
      case 9: check_size(); break;
      default: {
        auto given = arguments<SparringPlain>();
        if (call(storage_->clear, given)) rows_.clear();
      }
    }
  }

  void read_keys() {
    keys_.clear();
    for (size_t count = input_.byte() % 24; count > 0; --count) keys_.push_back(input_.key());
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    scores_.assign(keys_.size(), input_.byte());
  }

  int64_t count() {
    const auto size = static_cast<int64_t>(keys_.size());
    // Only negative numbers are wrong: arrays are as long as a positive count.
    return input_.byte() < 250 ? size : -1 - static_cast<int64_t>(input_.word() >> 1);
  }
  template <class Element>
  Element* array(Element* given) {
    return input_.byte() < 250 ? given : nullptr;
  }
  const uint64_t* scores() { return input_.byte() < 128 ? nullptr : scores_.data(); }
  SparringColumns columns() {
    if (input_.byte() >= 240) return {input_.word(), input_.word()};
    const uint64_t begin = input_.byte() % row_bytes_;
    return {begin, begin + 1 + input_.byte() % (row_bytes_ - begin)};
  }
  bool is_within(const SparringColumns& columns) const {
    return columns.begin < columns.end && columns.end <= row_bytes_;
  }

  void find() {
    auto given = arguments<SparringFind>();
    given.columns = columns();
    const uint64_t width = is_within(given.columns) ? given.columns.end - given.columns.begin : 1;
    given.row_stride = input_.byte() < 240 ? width + input_.byte() % 3 : input_.byte() % width;
    given.count = count();
    std::vector<char> rows(keys_.size() * std::max(given.row_stride, width), 'x');
    std::vector<uint8_t> found(keys_.size());
    given.keys = array(keys_.data());
    given.rows = array(rows.data());
    given.found = array(found.data());
    if (!call(storage_->find, given)) return;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto known = rows_.find(keys_[i]);
      if (!may_evict_) require((found[i] == 1) == (known != rows_.end()));
      if (known == rows_.end()) require(found[i] == 0);
      const char* const row = rows.data() + i * given.row_stride;
      if (found[i] == 1) {
        require(std::memcmp(row, known->second.data() + given.columns.begin, width) == 0);
      } else {
        require(std::all_of(row, row + width, [](char each) { return each == 0; }));
      }
    }
  }

  void upsert() {
    auto given = arguments<SparringUpsert>();
    given.row_stride = input_.byte() < 240 ? row_bytes_ + input_.byte() % 3 : input_.byte() % row_bytes_;
    given.count = count();
    std::vector<char> rows(keys_.size() * std::max(given.row_stride, row_bytes_));
    const char value = static_cast<char>(input_.byte());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<char>(value + static_cast<char>(i));
    given.keys = array(keys_.data());
    given.rows = array(rows.data());
    given.scores = scores();
    if (!call(storage_->upsert, given)) return;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const char* const row = rows.data() + i * given.row_stride;
      rows_[keys_[i]] = std::vector<char>(row, row + row_bytes_);
    }
  }

  void erase() {
    auto given = arguments<SparringErase>();
    given.count = count();
    given.keys = array(keys_.data());
    if (!call(storage_->erase, given)) return;
    int64_t erased = 0;
    for (const int64_t key : keys_) erased += static_cast<int64_t>(rows_.erase(key));
    if (may_evict_) require(given.erased <= erased);
    else require(given.erased == erased);
  }

  void scan() {
    auto given = arguments<SparringScan>();
    const auto capacity = 1 + static_cast<size_t>(input_.byte() % 7);
    given.capacity = input_.byte() < 240 ? static_cast<int64_t>(capacity) : -static_cast<int64_t>(input_.byte());
    given.columns = columns();
    const bool has_cursor = input_.byte() >= 240;
    if (has_cursor) {
      given.cursor[0] = input_.word();
      given.cursor[1] = input_.word();
    }
    std::vector<int64_t> keys(capacity);
    std::vector<uint64_t> scores(capacity);
    std::vector<char> rows(capacity * row_bytes_);
    given.keys = array(keys.data());
    given.rows = array(rows.data());
    given.scores = array(scores.data());
    size_t num_seen = 0;
    while (call(storage_->scan, given)) {
      require(given.count >= 0 && given.count <= given.capacity);
      for (int64_t i = 0; i < given.count; ++i) require(rows_.count(keys[static_cast<size_t>(i)]) == 1);
      num_seen += static_cast<size_t>(given.count);
      require(num_seen <= rows_.size());
      if (given.is_done == 0) continue;
      if (!has_cursor && !may_evict_) require(num_seen == rows_.size());
      return;
    }
  }

  void touch() {
    auto given = arguments<SparringTouch>();
    given.count = count();
    given.keys = array(keys_.data());
    given.scores = scores();
    call(storage_->touch, given);
  }

  static int32_t receive(void* context, int64_t count, const int64_t* keys, const void*, const uint64_t*) {
    auto& rows = static_cast<Program*>(context)->rows_;
    for (int64_t i = 0; i < count; ++i) require(rows.erase(keys[i]) == 1);
    return 0;
  }

  void evict() {
    auto given = arguments<SparringEvict>();
    given.wanted = input_.byte() < 240 ? input_.byte() : static_cast<int64_t>(input_.word());
    given.sink = {receive, this};
    // A bounded table may have evicted other rows before, which no sink received.
    if (may_evict_) given.sink = {};
    if (!call(storage_->evict, given)) return;
    require(given.evicted >= 0 && given.evicted <= std::max<int64_t>(given.wanted, 0));
    check_size();
  }

  static int32_t show(void* context, int64_t begin, int64_t count, const void* const* rows) {
    auto& self = *static_cast<Program*>(context);
    for (int64_t i = 0; i < count; ++i) {
      const auto known = self.rows_.find(self.keys_[static_cast<size_t>(begin + i)]);
      self.handles_.push_back(rows[i]);
      if (rows[i] == nullptr) {
        // Without a handle, the key had no row when it was visited before.
        if (!self.may_evict_ && !self.has_handles_) require(known == self.rows_.end());
        continue;
      }
      require(known != self.rows_.end());
      const size_t width = self.shown_.end - self.shown_.begin;
      require(std::memcmp(rows[i], known->second.data() + self.shown_.begin, width) == 0);
    }
    return 0;
  }

  void visit() {
    auto given = arguments<SparringVisit>();
    given.columns = input_.byte() < 64 ? SparringColumns{} : columns();
    given.count = count();
    given.keys = array(keys_.data());
    given.show = input_.byte() < 250 ? show : nullptr;
    given.context = this;
    std::vector<const void*> handles;
    if (input_.byte() < 100 && seen_keys_ == keys_) {
      handles = seen_;
      given.handles = handles.data();
      given.generation = generation_;
    }
    has_handles_ = given.handles != nullptr;
    shown_ = given.columns;
    handles_.clear();
    if (!call(storage_->visit, given)) return;
    if (given.columns.begin == 0 && given.call.struct_bytes == sizeof given) {
      seen_ = handles_;
      seen_keys_ = keys_;
      generation_ = given.generation;
    }
  }

  static int32_t admit(void* context, int64_t count, const int64_t*, uint8_t* is_admitted) {
    auto& self = *static_cast<Program*>(context);
    for (int64_t i = 0; i < count; ++i) is_admitted[i] = self.admitted_ >> (i % 8) & 1;
    return 0;
  }

  static void change(void* context, int64_t count, const int64_t* positions, void* const* rows,
                     const uint8_t* is_new) {
    auto& self = *static_cast<Program*>(context);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t key = self.keys_[static_cast<size_t>(positions[i])];
      const auto known = self.rows_.find(key);
      auto* const row = static_cast<char*>(rows[i]);
      if (is_new[i] == 0) {
        require(known != self.rows_.end());
        require(std::memcmp(row, known->second.data(), self.row_bytes_) == 0);
      } else if (!self.may_evict_) {
        require(known == self.rows_.end());
      }
      std::memset(row, static_cast<int>(key), self.row_bytes_);
      self.rows_[key] = std::vector<char>(row, row + self.row_bytes_);
    }
  }

  void update() {
    auto given = arguments<SparringUpdate>();
    given.count = count();
    given.keys = array(keys_.data());
    given.scores = scores();
    admitted_ = input_.byte();
    given.admit = input_.byte() < 128 ? nullptr : admit;
    given.change = input_.byte() < 250 ? change : nullptr;
    given.context = this;
    if (input_.byte() < 100 && seen_keys_ == keys_) {
      given.handles = seen_.data();
      given.generation = generation_;
    }
    call(storage_->update, given);
  }

  void set_option() {
    auto given = arguments<SparringSetOption>();
    constexpr const char* kNames[] = {"epoch", "scores", "calls", "nothing"};
    const std::string name = kNames[input_.byte() % 4];
    const uint8_t choice = input_.byte();
    std::string value = choice < 64    ? "given"
                        : choice < 100 ? "policy"
                        : choice < 200 ? std::to_string(input_.word())
                                       : std::string(choice % 8, static_cast<char>(input_.byte()));
    given.name = array(name.c_str());
    given.value = array(value.c_str());
    call(storage_->set_option, given);
  }

  void check_size() {
    SparringStat given{};
    given.call.struct_bytes = sizeof given;
    given.call.device = {1, 0};
    require(call(storage_->stat, given));
    require(given.row_bytes == row_bytes_);
    if (!may_evict_) {
      require(given.size == static_cast<int64_t>(rows_.size()));
    } else {
      require(given.size <= static_cast<int64_t>(rows_.size()) && given.size <= given.capacity);
    }
  }

  Input& input_;
  std::unique_ptr<SparringStorage, void (*)(SparringStorage*)> storage_{
      nullptr, [](SparringStorage* owned) { owned->release(owned); }};
  const SparringExecutor* executor_ = nullptr;
  uint64_t row_bytes_ = 0;
  // Whether rows disappear that the model still contains.
  bool may_evict_ = false;
  Rows rows_;
  std::vector<int64_t> keys_;
  std::vector<uint64_t> scores_;
  SparringColumns shown_{};
  bool has_handles_ = false;
  std::vector<const void*> handles_, seen_;
  std::vector<int64_t> seen_keys_;
  uint64_t generation_ = 0;
  uint8_t admitted_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  Program(input).run();
  return 0;
}
