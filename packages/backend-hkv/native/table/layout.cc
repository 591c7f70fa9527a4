#include "layout.h"

#include <algorithm>
#include <string>

#include "index.h"
#include "sparring/storage_border.h"

namespace sparring::hkv {

namespace {

using border::StatusError;

constexpr uint64_t kMaxRows = kNoRow;  // row numbers have 32 bits, and one value means none
constexpr uint64_t kMaxBuckets = 0xffffffffu;
constexpr uint64_t kRowsPerBucket = 48;

Layout fixed_layout(const TableOptions& options, uint64_t rows) {
  const uint64_t heads = (rows + kRowsPerBucket - 1) / kRowsPerBucket;
  const bool has_chains = options.policy == PolicyKind::kNone;
  return {rows, heads, heads + (has_chains ? rows / kSlots : 0), true};
}

uint64_t bytes_of(const TableOptions& options, const Layout& layout, uint64_t overhead_bytes) {
  const uint64_t bucket_bytes = Index::bucket_bytes(options.policy != PolicyKind::kNone);
  return overhead_bytes + Arena::bytes_for(bucket_bytes, layout.max_buckets) +
         Arena::bytes_for(row_stride(options.row_bytes), layout.max_rows);
}

}  // namespace

Layout make_layout(const TableOptions& options, uint64_t overhead_bytes) {
  if (options.row_bytes == 0) {
    throw StatusError(SPARRING_INVALID_ARGUMENT, "row_bytes must be at least 1; found 0");
  }
  if (options.capacity < -1 || options.capacity == 0) {
    throw StatusError(SPARRING_INVALID_ARGUMENT,
                      "capacity must be at least 1 row, or -1 for no limit; found " +
                          std::to_string(options.capacity));
  }
  const bool has_capacity = options.capacity > 0;
  const uint64_t most_rows = has_capacity ? static_cast<uint64_t>(options.capacity) : kMaxRows;
  if (most_rows > kMaxRows) {
    throw StatusError(SPARRING_INVALID_ARGUMENT,
                      "capacity must be at most " + std::to_string(kMaxRows) +
                          " rows, because row numbers have 32 bits; found " +
                          std::to_string(options.capacity));
  }
  if (options.memory_bytes == 0) {
    if (!has_capacity || options.policy == PolicyKind::kNone) {
      return {most_rows, 0, kMaxBuckets, has_capacity};
    }
    return fixed_layout(options, most_rows);
  }
  const auto fits = [&](uint64_t rows) {
    return bytes_of(options, fixed_layout(options, rows), overhead_bytes) <= options.memory_bytes;
  };
  if (!fits(1)) {
    const uint64_t least = bytes_of(options, fixed_layout(options, 1), overhead_bytes);
    throw StatusError(SPARRING_INVALID_ARGUMENT,
                      "memory_bytes must be enough for one row of " +
                          std::to_string(options.row_bytes) + " bytes and its index, " +
                          std::to_string(least) + " bytes; found " +
                          std::to_string(options.memory_bytes));
  }
  uint64_t low = 1;  // fits
  uint64_t high = most_rows + 1;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return fixed_layout(options, low);
}

std::string remedy_when_full(const Layout& layout) {
  if (layout.max_rows == kMaxRows) {
    return "a table of hkv cannot contain more; distribute it over more ranks, admit fewer ids, or limit "
           "it with capacity or memory_bytes and a policy that evicts";
  }
  return "its policy is none; raise its capacity or memory_bytes, or choose a policy that evicts";
}

}  // namespace sparring::hkv
