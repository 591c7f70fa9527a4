// What a table on a device asks back during a call, brought to Python: who may have a row, and who
// had to leave.
#ifndef SPARRING_HKV_BINDINGS_DEVICE_CALLBACKS_H_
#define SPARRING_HKV_BINDINGS_DEVICE_CALLBACKS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>
#include <vector>

#include "device/memory.h"
#include "device/read_back.h"
#include "sparring/storage_abi.h"

namespace sparring::hkv {

// What the work in a callback threw: it may not cross the border of the storage.
struct Thrown {
  std::exception_ptr error;
  template <class Body>
  int32_t guard(const Body& body) {
    if (error) return 1;
    try {
      body();
      return 0;
    } catch (...) {
      error = std::current_exception();
      return 1;
    }
  }
};

// Asks a Python function, which gets keys (n) int64 and answers (n) bool, both in host memory.
struct Asking {
  device::Device* device;
  device::Stream stream;
  const int64_t* keys;     // of the call, device
  pybind11::object admit;  // None: no admission check

  // Waits for the stream. Holds no GIL.
  //   positions    (count) int64, device
  //   is_admitted  (count) uint8, device, written
  void ask(int64_t count, const int64_t* positions, uint8_t* is_admitted) const;
};

// Rows that had to leave: counted, and copied to the host where somebody wants them.
class Departed {
 public:
  Departed(device::ReadBack& departing, device::Stream stream, int64_t row_bytes, bool is_kept)
      : departing_(departing), stream_(stream), row_bytes_(row_bytes), is_kept_(is_kept) {}
  Departed(const Departed&) = delete;
  Departed& operator=(const Departed&) = delete;

  // To be given to one call. Waits for the stream where rows are kept.
  SparringEvictionSink sink() { return {&Departed::receive, this}; }

  int64_t count() const { return count_; }
  // Keys (n) int64, rows (n, row_bytes) uint8, scores (n) uint64; None where nothing is kept.
  // Once: what was kept goes with them.
  pybind11::object arrays();

 private:
  static int32_t receive(void* context, int64_t count, const int64_t* keys, const void* rows,
                         const uint64_t* scores);

  device::ReadBack& departing_;
  device::Stream stream_;
  int64_t row_bytes_;
  bool is_kept_;
  int64_t count_ = 0;
  std::vector<int64_t> keys_;
  std::vector<uint8_t> rows_;
  std::vector<uint64_t> scores_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_BINDINGS_DEVICE_CALLBACKS_H_
