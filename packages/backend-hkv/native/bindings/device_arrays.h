// Arrays on a device that Python passes by the DLPack protocol, from NumPy, PyTorch or CuPy.
// Checks the dtype, shape, layout, alignment and device, but not the values of indices.
#ifndef SPARRING_HKV_BINDINGS_DEVICE_ARRAYS_H_
#define SPARRING_HKV_BINDINGS_DEVICE_ARRAYS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/reclaimers.h"
#include "device/memory.h"
#include "device/read_back.h"
#include "device_kernels/row_layout.h"

namespace sparring::hkv {

// Device types, with the numbers of DLPack and storage_abi.h.
inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCuda = 2;

// Raises sparring.errors.InvalidArgumentError.
[[noreturn]] void refuse(const std::string& message);

// A device owned by Python, and words of pinned memory for reading results.
class DeviceHandle {
 public:
  explicit DeviceHandle(std::shared_ptr<device::Device> device);
  ~DeviceHandle();
  DeviceHandle(const DeviceHandle&) = delete;
  DeviceHandle& operator=(const DeviceHandle&) = delete;

  device::Device& device() const { return *device_; }
  // For tables, which may outlive the handle.
  const std::shared_ptr<device::Device>& shared_device() const { return device_; }
  // Copies evicted rows and counts to the host.
  device::ReadBack& read_back() { return read_back_; }
  // DLPack's device type (1 = CPU, 2 = CUDA) and device number.
  int32_t type() const { return type_; }
  int32_t number() const { return number_; }
  // Bytes on the device. They are freed when the streams passed to keep_until() have executed.
  using Resident = std::shared_ptr<const device::Buffer>;
  static constexpr size_t kMostResidents = 64;
  // Returns a copy of these bytes on the device. For small arrays that many steps use; the last
  // kMostResidents are cached. Waits for the copy if the bytes are not cached.
  Resident resident(const void* bytes, size_t num_bytes);
  // Keeps residents until the work enqueued on `stream` is done. REQUIRES: the caller owns them.
  void keep_until(device::Stream stream);
  // Adds a function that releases unused device memory of a framework and returns whether there
  // was any. It is called if the device has no free memory. Requires the GIL.
  void add_reclaimer(pybind11::object function);
  // Reads *from (1) int64, device, in the order of the stream. Waits only for that stream.
  int64_t read_word(const void* from, device::Stream stream);

 private:
  int64_t* take_word();

  std::shared_ptr<device::Device> device_;
  std::shared_ptr<Reclaimers> reclaimers_ = std::make_shared<Reclaimers>();
  device::ReadBack read_back_;
  int32_t type_;
  int32_t number_;
  std::mutex mutex_;
  // Residents are allocated and freed on a separate stream, because callers' streams may be
  // destroyed.
  device::Stream own_stream_ = nullptr;  // NULL until it is created
  device::Event reads_ = nullptr;
  std::list<std::pair<std::string, Resident>> residents_;  // least recently used first
  std::vector<int64_t*> words_;  // unused
  size_t num_words_ = 0;         // used and unused
};

// In expected shapes: any length.
inline constexpr int64_t kAny = -1;

// An array, which this object keeps alive.
class DeviceArray {
 public:
  // Raises InvalidArgumentError unless the object is an array on the device that is C-contiguous
  // (rows may have any stride if `rows_apart`).
  DeviceArray(const DeviceHandle& device, const pybind11::handle& object, const char* name,
              bool rows_apart = false);

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t length() const { return shape_[0]; }
  int64_t num_elements() const;
  // Bytes from one row to the next, for arrays with two dimensions.
  int64_t row_stride() const { return row_stride_; }
  int64_t element_bytes() const { return element_bytes_; }
  void* bytes() const { return data_; }

  // Raises InvalidArgumentError if the array has a different shape.
  void check_shape(std::initializer_list<int64_t> expected) const;
  // Returns the elements; raises InvalidArgumentError if they have a different type.
  template <class T>
  T* as() const {
    check_dtype(code_of<T>(), sizeof(T));
    return static_cast<T*>(data_);
  }
  template <class T>
  bool is() const {
    return code_ == code_of<T>() && element_bytes_ == static_cast<int64_t>(sizeof(T));
  }
  device_kernels::RowType row_type() const;

 private:
  // DLPack's type code. Older libraries export booleans as uint8.
  template <class T>
  static constexpr int code_of() {
    if constexpr (std::is_floating_point_v<T>) return 2;
    if constexpr (std::is_signed_v<T>) return 0;
    return 1;
  }
  void check_dtype(int code, size_t bytes) const;

  const char* name_;
  pybind11::object capsule_;
  void* data_ = nullptr;
  int code_ = 0;
  int64_t element_bytes_ = 0;
  int64_t row_stride_ = 0;
  std::vector<int64_t> shape_;
};

// Calls body(T{}) with the array's element type, float or double.
template <class Body>
auto with_float_dtype(const DeviceArray& array, const char* name, const Body& body) {
  if (array.is<float>()) return body(float{});
  if (array.is<double>()) return body(double{});
  refuse(std::string(name) + " must be float32 or float64");
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_BINDINGS_DEVICE_ARRAYS_H_
