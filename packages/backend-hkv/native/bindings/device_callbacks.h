// Callbacks of a device table during a call, implemented by Python: the admission of new keys,
// and evicted rows.
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

// Stores an exception of a callback, because exceptions must not cross the C ABI.
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

// Calls a Python function with keys (n) int64, which returns (n) bool, both in host memory.
struct Asking {
  device::Device* device;
  device::Stream stream;
  const int64_t* keys;     // of the whole call, device
  pybind11::object admit;  // None: no admission check

  // Waits for the stream. The caller must not hold the GIL.
  //   positions    (count) int64, device
  //   is_admitted  (count) uint8, device, output
  void ask(int64_t count, const int64_t* positions, uint8_t* is_admitted) const;
};

// Receives evicted rows: counts them and, if requested, copies them to the host.
class Departed {
 public:
  Departed(device::ReadBack& departing, device::Stream stream, int64_t row_bytes, bool is_kept)
      : departing_(departing), stream_(stream), row_bytes_(row_bytes), is_kept_(is_kept) {}
  Departed(const Departed&) = delete;
  Departed& operator=(const Departed&) = delete;

  // The sink for one call. It waits for the stream if rows are kept.
  SparringEvictionSink sink() { return {&Departed::receive, this}; }

  int64_t count() const { return count_; }
  // Returns keys (n) int64, rows (n, row_bytes) uint8, scores (n) uint64; None if rows are not kept.
  // Can be called once, because it moves the arrays.
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
