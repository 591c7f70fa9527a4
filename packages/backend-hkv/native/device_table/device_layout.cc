#include "device_layout.h"

#include <string>

#include "device_bucket.h"
#include "sparring/storage_border.h"

namespace sparring::hkv {
namespace {

using border::StatusError;

constexpr uint64_t kMaxRows = kNoDeviceRow;  // row numbers have 32 bits, and one value means none
constexpr uint64_t kMaxOverflow = uint64_t{1} << 31;
// For a fixed index with chains: three quarters of 128 slots.
constexpr uint64_t kRowsPerHead = 96;
// Counters, and the list of row chunks: at most 8 bytes per 16 KiB of rows.
constexpr uint64_t kFixedBytes = 4096;

DeviceLayout fixed_layout(const TableOptions& options, uint64_t rows) {
  const bool evicts = options.policy != PolicyKind::kNone;
  const uint64_t per_head = evicts ? kDeviceSlots : kRowsPerHead;
  return {rows, (rows + per_head - 1) / per_head, evicts ? 0 : rows / kDeviceSlots, true, evicts};
}

uint64_t bytes_of(const TableOptions& options, const DeviceLayout& layout) {
  const bool has_chains = layout.has_chains();
  const uint64_t bucket = DeviceBuckets::bucket_bytes(!has_chains, has_chains);
  const uint64_t row_bytes = layout.max_rows * device_row_stride(options.row_bytes);
  // Free rows and overflow buckets are listed with 4 bytes each.
  const uint64_t listed = has_chains ? 4 * (layout.max_rows + layout.max_overflow) : 0;
  return kFixedBytes + row_bytes / 1024 + row_bytes + listed +
         bucket * (layout.num_fixed_heads + layout.max_overflow);
}

[[noreturn]] void refuse(const std::string& message) {
  throw StatusError(SPARRING_INVALID_ARGUMENT, message);
}

}  // namespace

DeviceLayout make_device_layout(const TableOptions& options) {
  if (options.row_bytes == 0) refuse("row_bytes must be at least 1; found 0");
  if (options.capacity < -1 || options.capacity == 0) {
    refuse("capacity must be at least 1 row, or -1 for no limit; found " +
           std::to_string(options.capacity));
  }
  const bool has_capacity = options.capacity > 0;
  const uint64_t most_rows = has_capacity ? static_cast<uint64_t>(options.capacity) : kMaxRows;
  if (most_rows > kMaxRows) {
    refuse("capacity must be at most " + std::to_string(kMaxRows) +
           " rows, because row numbers have 32 bits; found " + std::to_string(options.capacity));
  }
  if (options.memory_bytes == 0) {
    if (!has_capacity || options.policy == PolicyKind::kNone) {
      return {most_rows, 0, kMaxOverflow, has_capacity, false};
    }
    return fixed_layout(options, most_rows);
  }
  const auto fits = [&](uint64_t rows) {
    return bytes_of(options, fixed_layout(options, rows)) <= options.memory_bytes;
  };
  if (!fits(1)) {
    refuse("memory_bytes must be enough for one row of " + std::to_string(options.row_bytes) +
           " bytes and its index, " + std::to_string(bytes_of(options, fixed_layout(options, 1))) +
           " bytes; found " + std::to_string(options.memory_bytes));
  }
  uint64_t low = 1;  // fits
  uint64_t high = most_rows + 1;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return fixed_layout(options, low);
}

}  // namespace sparring::hkv
