// Finds, packs and places the rows of all tables of an exchange in one call.
//
// A message contains one slice per table, aligned to 8 bytes; see sparring/exchange/messages.py.
//
//   rows        n rows | n found, uint8 | padding
//   gradients   n keys, int64 | n gradients | padding
#ifndef SPARRING_EXCHANGE_TABLES_H_
#define SPARRING_EXCHANGE_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "abi/storage_handle.h"
#include "execution/senders.h"
#include "kernels/parallel.h"

namespace sparring::exchange {

// Value of a found flag if the owner's storage failed.
inline constexpr uint8_t kFailed = 2;

constexpr int64_t align_bytes(int64_t num_bytes) { return (num_bytes + 7) / 8 * 8; }

// Calls body(part) for each part. The parts share the threads, unless all of them are small.
template <class Part, class Bytes, class Body>
void for_each_part(const SparringExecutor* executor, const std::vector<Part>& parts,
              const Bytes& row_bytes, const Body& body) {
  int64_t num_rows = 0;
  int64_t num_bytes = 0;
  for (const Part& part : parts) {
    num_rows += part.count;
    num_bytes += part.count * row_bytes(part);
  }
  const SparringExecutor* const shared = kernels::executor_for_batch(executor, num_rows, num_bytes);
  execution::sync_wait(
      execution::schedule(execution::executor_scheduler(shared)) |
      execution::bulk(static_cast<int64_t>(parts.size()),
                      [&](int64_t i) { body(parts[static_cast<size_t>(i)]); }));
}

// Keys of one table whose rows are found.
struct FindPart {
  const abi::StorageHandle* storage;  // NULL: no key has a row
  SparringColumns columns;
  const int64_t* keys;    // (n) distinct
  int64_t count;          // n
  std::byte* rows;        // of the bytes of `columns`; zeros for keys without a row
  uint8_t* found;         // 1 or 0
  const int64_t* places;  // (n) of each key in `rows` and `found`; NULL: its own position
};

// Throws StorageError, std::bad_alloc.
void find_rows(const SparringExecutor* executor, const std::vector<FindPart>& parts);

// Rows of one table in a message, copied to their places.
struct PlacePart {
  const std::byte* rows;  // (n, row_bytes)
  const uint8_t* flags;   // (n)
  const int64_t* places;  // (n) in `out` and `found`
  int64_t count;          // n
  int64_t row_bytes;
  std::byte* out;
  uint8_t* found;
};

void place_rows(const SparringExecutor* executor, const std::vector<PlacePart>& parts);

// Gradients of one table, copied from their places to a message.
struct PackPart {
  const std::byte* gradients;
  const int64_t* places;  // (n) in `gradients`
  int64_t count;          // n
  int64_t row_bytes;
  std::byte* out;  // (n, row_bytes)
};

void pack_rows(const SparringExecutor* executor, const std::vector<PackPart>& parts);

}  // namespace sparring::exchange

#endif  // SPARRING_EXCHANGE_TABLES_H_
