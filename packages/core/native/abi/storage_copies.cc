// Implements visit and update for storages that do not support them, with find and upsert on
// copies of rows.
#include <algorithm>
#include <cstring>
#include <memory>

#include "abi/storage_handle.h"
#include "execution/pool.h"
#include "kernels/dedup.h"
#include "kernels/parallel.h"

namespace sparring::abi {
namespace {

// Rows per call of a visitor.
constexpr int64_t kBlock = 256;

[[noreturn]] void refuse_answer(const char* who, int32_t answer) {
  throw StorageError(SPARRING_INTERNAL,
                     std::string(who) + " returned " + std::to_string(answer) + ", expected 0");
}

}  // namespace

void StorageHandle::visit_copies(SparringVisit& arguments) const {
  const int64_t count = arguments.count;
  const auto size = static_cast<size_t>(count);
  std::vector<int64_t> keys(size);
  std::vector<int64_t> inverse(size);
  const int64_t num_keys =
      kernels::dedup(nullptr, arguments.keys, count, keys.data(), inverse.data());
  const uint64_t bytes = arguments.columns.end - arguments.columns.begin;
  const auto rows =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(num_keys) * bytes);
  std::vector<uint8_t> found(static_cast<size_t>(num_keys));
  SparringFind asked{};
  asked.count = num_keys;
  asked.keys = keys.data();
  asked.columns = arguments.columns;
  asked.rows = rows.get();
  asked.row_stride = bytes;
  asked.found = found.data();
  if (num_keys > 0) find(asked);
  const void* shown[kBlock];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t part = std::min(kBlock, count - at);
    for (int64_t i = 0; i < part; ++i) {
      const auto row = static_cast<size_t>(inverse[static_cast<size_t>(at + i)]);
      shown[i] = found[row] != 0 ? rows.get() + row * bytes : nullptr;
    }
    const int32_t answer = arguments.show(arguments.context, at, part, shown);
    if (answer != 0) refuse_answer("the visitor of the rows", answer);
  }
}

void StorageHandle::update_copies(SparringUpdate& arguments, EvictedRows* evicted) const {
  const int64_t count = arguments.count;
  const auto size = static_cast<size_t>(count);
  arguments.inserted = 0;
  if (count == 0) return;
  const auto rows = std::make_unique_for_overwrite<std::byte[]>(size * row_bytes_);
  std::vector<uint8_t> found(size);
  SparringFind asked{};
  asked.count = count;
  asked.keys = arguments.keys;
  asked.columns = {0, row_bytes_};
  asked.rows = rows.get();
  asked.row_stride = row_bytes_;
  asked.found = found.data();
  find(asked);

  std::vector<int64_t> missing;
  for (int64_t i = 0; i < count; ++i) {
    if (found[static_cast<size_t>(i)] == 0) missing.push_back(i);
  }
  std::vector<uint8_t> is_admitted(missing.size(), 1);
  if (arguments.admit != nullptr && !missing.empty()) {
    const int32_t answer = arguments.admit(
        arguments.context, static_cast<int64_t>(missing.size()), missing.data(), is_admitted.data());
    if (answer != 0) refuse_answer("the admission of new keys", answer);
  }

  // Rejected keys are removed, so that the keys to upsert are contiguous.
  std::vector<int64_t> positions;
  positions.reserve(size);
  std::vector<int64_t> keys;
  keys.reserve(size);
  std::vector<uint64_t> scores;
  std::vector<uint8_t> is_new;
  is_new.reserve(size);
  size_t next_missing = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool is_missing = found[at] == 0;
    if (is_missing && is_admitted[next_missing++] == 0) continue;
    if (positions.size() != at) {
      std::memcpy(rows.get() + positions.size() * row_bytes_, rows.get() + at * row_bytes_,
                  row_bytes_);
    }
    positions.push_back(i);
    keys.push_back(arguments.keys[i]);
    is_new.push_back(is_missing);
    if (arguments.scores != nullptr) scores.push_back(arguments.scores[i]);
    arguments.inserted += is_missing;
  }
  const auto num_changed = static_cast<int64_t>(positions.size());
  kernels::parallel_for(
      execution::process_executor(), num_changed, kBlock, [&](int64_t begin, int64_t end) {
        void* changed[kBlock];
        for (int64_t at = begin; at < end; at += kBlock) {
          const int64_t part = std::min(kBlock, end - at);
          for (int64_t i = 0; i < part; ++i) {
            changed[i] = rows.get() + static_cast<size_t>(at + i) * row_bytes_;
          }
          arguments.change(arguments.context, part, positions.data() + at, changed,
                           is_new.data() + at);
        }
      });
  if (num_changed == 0) return;
  SparringUpsert written{};
  written.count = num_changed;
  written.keys = keys.data();
  written.rows = rows.get();
  written.row_stride = row_bytes_;
  written.scores = arguments.scores != nullptr ? scores.data() : nullptr;
  upsert(written, evicted);
}

}  // namespace sparring::abi
